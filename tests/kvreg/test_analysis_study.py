"""Whole studies: the published tables, and what must not change a verdict."""

import dataclasses
import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("scipy")

from kvreg.analysis import Analysis, analyze
from kvreg.analysis.crossover import FAVOURABLE, UNFAVOURABLE
from kvreg.analysis.metrics import METRICS
from kvreg.analysis.table import FAILED, INCOMPATIBLE, CellRow, CellTable
from kvreg.errors import ContractError
from tests.support.studies import cell, m2_rows, m4_answers, m4_rows, study

rates = st.floats(1, 1e4)


@st.composite
def designs(draw: st.DrawFn) -> list[CellRow]:
    """Small studies with gates and failures."""
    grid = draw(st.lists(st.integers(1, 64), min_size=1, max_size=4, unique=True))
    repetitions = draw(st.integers(1, 5))
    rows = []
    for concurrency in grid:
        for tp in (1, 2):
            for number in range(1, repetitions + 1):
                rate = draw(st.one_of(rates, rates, rates, rates, st.none()))
                state = draw(st.sampled_from([None, FAILED])) if rate is None else None
                rows.append(cell("m", "w", None, concurrency, tp, number, rate, state=state))
    return rows


def answers(found: Analysis, metric: str = "output_tokens_per_s") -> dict[tuple[str, str], str]:
    return {verdict.subject: str(verdict.plain.answer) for verdict in found.crossovers(metric)}


def verdicts(found: Analysis) -> dict[tuple[str, str, int, str], str]:
    return {
        (*point.subject, point.concurrency, name): judgement.verdict
        for _, point in found.points
        for name, judgement in point.judgements.items()
    }


@pytest.mark.parametrize("seed", range(5))
def test_the_published_table_comes_out(seed: int) -> None:
    found = analyze(m4_rows(seed))
    assert answers(found) == m4_answers()
    entries = found.to_dict()["crossovers"]
    assert len(entries) == 12
    by_subject = {
        (entry["model"], entry["workload"]): entry["first_sustained_favorable"] for entry in entries
    }
    qwen = "Qwen2.5-3B-Instruct"
    assert by_subject[qwen, "balanced"] == 64
    assert by_subject[qwen, "short"] == "none"
    assert by_subject[qwen, "prefill_heavy"] == "RESOURCE_GATED@64"


def test_the_exploratory_table_is_descriptive_and_kept_apart() -> None:
    data = analyze(m2_rows()).to_dict()
    (found,) = [d for d in data["descriptive"] if d["metric"] == "output_tokens_per_s"]
    assert found["descriptive_crossover"] == 16
    (entry,) = data["crossovers"]
    assert entry["first_sustained_favorable"] == "none" and not entry["estimable"]
    for point in data["points"]:
        judged = point["metrics"]["output_tokens_per_s"]
        assert judged["verdict"] == "inconclusive" and judged["interval"] is None
        assert "not estimable" in judged["reason"]


@given(designs(), st.randoms())
def test_row_order_changes_nothing(rows: list[CellRow], shuffler: random.Random) -> None:
    other = list(rows)
    shuffler.shuffle(other)
    assert analyze(other).to_dict() == analyze(rows).to_dict()


@given(designs(), st.sampled_from([1000.0, 0.001, 60.0, 1 / 1024, 3600.0]))
def test_units_change_no_verdict(rows: list[CellRow], factor: float) -> None:
    other = [
        dataclasses.replace(
            row,
            **{name: value * factor for name in METRICS if (value := row.value(name)) is not None},
        )
        for row in rows
    ]
    first, second = analyze(rows), analyze(other)
    assert verdicts(second) == verdicts(first)
    assert answers(second) == answers(first)


@given(designs())
def test_swapped_arms_are_antisymmetric(rows: list[CellRow]) -> None:
    swapped = [dataclasses.replace(row, tp=3 - row.tp) for row in rows]
    first, second = analyze(rows), analyze(swapped)
    mirror = {FAVOURABLE: UNFAVOURABLE, UNFAVOURABLE: FAVOURABLE}
    assert verdicts(second) == {key: mirror.get(v, v) for key, v in verdicts(first).items()}
    for (_, one), (_, two) in zip(first.points, second.points, strict=True):
        for name in METRICS:
            a, b = one.judgements[name].estimate, two.judgements[name].estimate
            if a is not None and b is not None:
                assert b.mean == -a.mean
                if a.low is not None and a.high is not None:
                    assert (b.low, b.high) == (-a.high, -a.low)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(0, 4))
def test_a_single_noisy_favourable_point_is_never_the_crossover(seed: int, noisy: int) -> None:
    """TP2 is slower everywhere; at one concurrency below the top it looks faster by chance."""
    rng = random.Random(seed)
    grid = [1, 4, 8, 16, 32, 64]
    table = {}
    for index, concurrency in enumerate(grid):
        gain = 1.3 if index == noisy else 0.7
        one = [100 * rng.gauss(1, 0.01) for _ in range(5)]
        table[concurrency] = {1: one, 2: [x * gain * rng.gauss(1, 0.01) for x in one]}
    found = analyze(study(table))
    says = verdicts(found)
    assert says["m", "w", grid[noisy], "output_tokens_per_s"] == FAVOURABLE
    assert answers(found) == {("m", "w"): "none"}


def test_latency_is_better_when_lower_and_has_a_table_of_its_own() -> None:
    """More throughput and a worse first token are two answers, not one."""
    rows = [
        dataclasses.replace(row, ttft_ms=(50.0 if row.tp == 1 else 80.0) + row.repetition)
        for row in study({c: {1: [10.0, 11, 12], 2: [20.0, 21, 22.5]} for c in (1, 8)})
    ]
    found = analyze(rows)
    assert answers(found) == {("m", "w"): "1"}
    assert answers(found, "tpot_ms") == {("m", "w"): "1"}
    assert answers(found, "ttft_ms") == {("m", "w"): "none"}
    assert verdicts(found)["m", "w", 1, "ttft_ms"] == UNFAVOURABLE


def test_unmatched_repetitions_are_left_out_and_named() -> None:
    rows = study({8: {1: [10.0, 11.0, 12.0, 13.0], 2: [20.0, 21.5, 22.0]}})
    rows[1] = cell("m", "w", None, 8, 1, 2, None, state=FAILED)
    (point,) = analyze(rows).to_dict()["points"]
    assert point["left_out"] == [
        {"repetition": 2, "reason": "TP1 is FAILED"},
        {"repetition": 4, "reason": "TP2 has no such repetition"},
    ]
    judged = point["metrics"]["output_tokens_per_s"]
    assert judged["differences"] == {"1": 10.0, "3": 10.0}


def test_no_repetition_in_common_is_not_estimable() -> None:
    rows = [cell(tp=1, repetition=n, rate=10.0 + n) for n in (1, 2, 3)]
    rows += [cell(tp=2, repetition=n, rate=90.0 + n) for n in (4, 5, 6)]
    (point,) = analyze(rows).to_dict()["points"]
    judged = point["metrics"]["output_tokens_per_s"]
    assert (judged["verdict"], judged["pairs"], judged["mean"]) == ("inconclusive", 0, None)


def test_one_gated_repetition_of_either_arm_gates_the_concurrency() -> None:
    for arm in (1, 2):
        better = {1: [10.0, 11.0, 12.0], 2: [20.0, 21.0, 22.5]}
        gated = {**better, arm: [None, *better[arm][1:]]}
        found = analyze(study({8: better, 16: better, 64: gated}))
        assert answers(found) == {("m", "w"): "RESOURCE_GATED@64"}
        found = analyze(study({8: better, 16: gated, 64: better}))
        assert answers(found) == {("m", "w"): "64"}
        point = found.to_dict()["points"][1]
        assert point["gated"] == {str(arm): [1]}
        judged = point["metrics"]["output_tokens_per_s"]
        assert (judged["verdict"], judged["mean"], judged["interval"]) == ("gated", None, None)


def test_a_concurrency_that_one_arm_lacks_sustains_nothing() -> None:
    better = {1: [10.0, 11.0, 12.0], 2: [20.0, 21.0, 22.5]}
    rows = study({8: better, 64: {1: [10.0, 11.0, 12.0]}})
    assert answers(analyze(rows)) == {("m", "w"): "none"}


def test_more_degrees_are_pairs_with_the_smallest() -> None:
    table = {
        c: {1: [10.0, 11, 12], 2: [9.0, 9.5, 10.4], 4: [30.0, 32, 33], 8: [5.0, 6, 7]}
        for c in (1, 8)
    }
    found = analyze(study(table))
    data = found.to_dict()
    assert data["pairs"] == [{"baseline_tp": 1, "candidate_tp": tp} for tp in (2, 4, 8)]
    (entry,) = data["crossovers"]
    assert (entry["candidate_tp"], entry["first_sustained_favorable"]) == (2, "none")
    by_tp = {
        entry["candidate_tp"]: entry["first_sustained_favorable"]
        for entry in data["all_crossovers"]
        if entry["metric"] == "output_tokens_per_s"
    }
    assert by_tp == {2: "none", 4: 1, 8: "none"}
    assert analyze(study(table), baseline=4).to_dict()["pairs"] == [
        {"baseline_tp": 4, "candidate_tp": 8}
    ]
    with pytest.raises(ContractError, match="no cell has TP 3"):
        analyze(study(table), baseline=3)


def test_one_degree_has_nothing_to_compare() -> None:
    found = analyze(study({1: {1: [1.0, 2.0]}}))
    assert (found.pairs, found.points, found.crossovers()) == ((), (), [])
    assert found.to_dict()["alone"] == (
        "TP1 alone was tried: there is nothing to compare it with, so no crossover"
    )
    with pytest.raises(ContractError, match="nothing to compare"):
        analyze(study({1: {1: [1.0, 2.0], 2: [1.0, 2.0]}}), baseline=2)


def test_incompatible_models_stay_on_record_and_out_of_the_table() -> None:
    rows = study({8: {1: [10.0, 11.0], 2: [20.0, 21.5]}})
    rows += [
        cell("gemma", "w", None, 8, tp, n, None, state=INCOMPATIBLE, memory=None)
        for tp in (1, 2)
        for n in (1, 2)
    ]
    data = analyze(rows).to_dict()
    assert [entry["model"] for entry in data["crossovers"]] == ["m"]
    assert {(entry["model"], entry["tp"]) for entry in data["incompatible"]} == {
        ("gemma", 1),
        ("gemma", 2),
    }
    assert all(point["model"] == "m" for point in data["points"])


def test_within_server_rows_have_no_interval_and_no_crossover() -> None:
    rows = study({c: {1: [10.0, 11, 12], 2: [20.0, 21, 22.5]} for c in (1, 8)})
    table = CellTable(tuple(rows), {"source": "sweep"}, "within-server, descriptive")
    data = analyze(table).to_dict()
    assert data["label"] == "within-server, descriptive"
    assert data["crossovers"] == [] and data["all_crossovers"] == []
    assert data["descriptive"][0]["descriptive_crossover"] == 1
    judged = data["points"][0]["metrics"]["output_tokens_per_s"]
    assert judged["interval"] is None and judged["mean"] > 0
    assert judged["reason"] == "within-server, descriptive"


def test_holm_is_never_kinder_and_has_its_own_crossovers() -> None:
    """A point that is just favourable alone is not so among many."""
    base = [100.0] * 5
    nothing, just = [-1.0, 1.0, -2.0, 2.0, 0.1], [1.0, 2.0, 3.0, 4.0, 5.0]
    table = {
        c: {1: base, 2: [a + b for a, b in zip(base, just if c == 64 else nothing, strict=True)]}
        for c in (1, 2, 4, 8, 16, 32, 64)
    }
    found = analyze(study(table))
    data = found.to_dict()
    (entry,) = data["crossovers"]
    assert entry["first_sustained_favorable"] == 64
    assert entry["holm_first_sustained_favorable"] == "none"
    for point in data["points"]:
        judged = point["metrics"]["output_tokens_per_s"]
        assert judged["holm"]["p"] >= judged["p"]


def test_moderated_cross_check_agrees_where_noise_is_even() -> None:
    data = analyze(m4_rows()).to_dict()
    check = data["cross_check"][0]
    assert check["metric"] == "output_tokens_per_s" and check["compared"] == 71
    assert len(check["disagree"]) <= 5
    point = data["points"][0]["metrics"]["output_tokens_per_s"]["moderated"]
    assert point["interval"][0] < point["ratio"] < point["interval"][1]


def test_result_is_plain_json_and_only_finite(tmp_path) -> None:
    text = json.dumps(analyze(m4_rows()).to_dict(), allow_nan=False)
    assert math.isfinite(len(text))


def test_only_the_metrics_that_are_asked_for() -> None:
    data = analyze(m4_rows(), metrics=["ttft_ms"]).to_dict()
    assert list(data["metrics"]) == ["output_tokens_per_s", "ttft_ms"]
    assert {entry["metric"] for entry in data["all_crossovers"]} == set(data["metrics"])
    assert set(data["points"][0]["metrics"]) == set(data["metrics"])
