"""``kvreg advise``: answers from evidence, and no answer without it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("scipy")

from kvreg.analysis.advice import Advice, Question, advise
from kvreg.analysis.table import FAILED, INCOMPATIBLE, CellRow, CellTable, cells_csv
from kvreg.cli import main
from kvreg.errors import NotFoundError
from kvreg.sweep.presets import read_preset
from tests.support.studies import cell, m4_rows, results_of, study, write_sweep

SLOW, FAST = [10.0, 11.0, 12.0], [20.0, 21.0, 22.5]
BETTER = {1: SLOW, 2: FAST}
WORSE = {1: FAST, 2: SLOW}
EVEN = {1: SLOW, 2: [12.0, 10.0, 11.0]}
GATED = [None, None, None]


def ask(rows: list[CellRow], concurrency: int = 8, metric: str = "output_tokens_per_s") -> Advice:
    question = Question("m", 128, 64, concurrency, metric)
    return advise(question, CellTable(tuple(rows), {"cells": "sha256:0"}))


def answer(rows: list[CellRow], concurrency: int = 8) -> tuple[int | None, str | None]:
    found = ask(rows, concurrency)
    return found.tp, found.because


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        ({8: BETTER, 64: BETTER}, (2, "performance")),
        ({8: WORSE, 64: BETTER}, (1, "performance")),
        ({8: EVEN, 64: BETTER}, (None, None)),
        # a favourable point that is not sustained is no advice
        ({8: BETTER, 16: EVEN, 64: BETTER}, (None, None)),
        ({8: BETTER, 16: WORSE}, (None, None)),
        # sustained up to the gate of either
        ({8: BETTER, 16: BETTER, 64: {1: SLOW, 2: GATED}}, (2, "performance")),
        ({8: {1: GATED, 2: FAST}}, (2, "capacity")),
        ({8: {1: [None, *SLOW[1:]], 2: FAST}}, (2, "capacity")),
        ({8: {1: SLOW, 2: GATED}}, (1, "capacity")),
        ({8: {1: GATED, 2: GATED}}, (None, None)),
        ({4: BETTER, 8: {1: GATED, 2: FAST}}, (2, "both")),
        ({4: EVEN, 8: {1: GATED, 2: FAST}}, (2, "capacity")),
        ({4: BETTER, 6: WORSE, 8: {1: GATED, 2: FAST}}, (2, "capacity")),
        ({8: {1: SLOW}}, (None, None)),
    ],
)
def test_answers(grid: dict, expected: tuple[int | None, str | None]) -> None:
    assert answer(study(grid)) == expected


@pytest.mark.parametrize(
    ("arms", "expected"),
    [
        ({1: SLOW, 2: FAST, 4: [40.0, 41.0, 42.5]}, (4, "performance")),
        ({1: SLOW, 2: FAST, 4: SLOW}, (2, "performance")),
        ({1: GATED, 2: SLOW, 4: FAST}, (4, "both")),
        ({1: GATED, 2: FAST, 4: SLOW}, (2, "both")),
        ({1: GATED, 2: GATED, 4: FAST}, (4, "capacity")),
        # 4 is better than 1, but nobody knows whether it is better than 2
        ({1: SLOW, 2: FAST, 4: [22.0, 20.5, 21.0]}, (None, None)),
    ],
)
def test_more_degrees(arms: dict, expected: tuple[int | None, str | None]) -> None:
    assert answer(study({8: arms})) == expected


def test_between_tested_concurrencies_both_neighbours_must_agree() -> None:
    rows = study({8: BETTER, 16: BETTER})
    assert answer(rows, 12) == (2, "performance")
    assert "its neighbours agree" in ask(rows, 12).reasons[0]
    assert answer(study({8: WORSE, 16: BETTER}), 12) == (None, None)


def test_nothing_is_extrapolated() -> None:
    rows = study({8: BETTER, 16: BETTER})
    for concurrency in (4, 32):
        found = ask(rows, concurrency)
        assert found.tp is None and "outside the tested 8 to 16" in found.reasons[0]
    shape = advise(Question("m", 2048, 64, 8), CellTable(tuple(rows), {}))
    assert shape.tp is None and "was not tested; tested: 128+64" in shape.reasons[0]
    with pytest.raises(NotFoundError, match="no cell of other"):
        advise(Question("other", 128, 64, 8), CellTable(tuple(rows), {}))


def test_one_repetition_is_inconclusive() -> None:
    found = ask(study({8: {1: [10.0], 2: [99.0]}}))
    assert found.tp is None and "not estimable" in found.reasons[0]


def test_each_metric_is_its_own_question() -> None:
    """Twice the throughput and half the latency here; what was not measured decides nothing."""
    rows = study({8: BETTER})
    assert ask(rows, metric="ttft_ms").tp == 2
    bare = [CellRow(**{**vars(row), "ttft_ms": None}) for row in rows]
    found = ask(bare, metric="ttft_ms")
    assert found.tp is None and "ttft_ms was not measured" in found.reasons[0]


@pytest.mark.parametrize("state", [FAILED, INCOMPATIBLE])
def test_what_never_ran_is_named_and_is_no_capacity(state: str) -> None:
    rows = study({8: {1: SLOW}})
    rows += [cell("m", "w", None, 8, 2, n, None, state=state, memory=None) for n in (1, 2, 3)]
    found = ask(rows)
    assert found.tp is None
    assert f"TP2 is {state} in all of 3 repetitions" in found.reasons[0]


def test_within_server_evidence_is_descriptive() -> None:
    table = CellTable(tuple(study({8: BETTER})), {}, "within-server, descriptive")
    found = advise(Question("m", 128, 64, 8), table)
    assert found.tp is None and "within-server" in found.reasons[0]


def run(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["advise", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def test_command_names_its_evidence(tmp_path: Path) -> None:
    directory = write_sweep(tmp_path / "m4", read_preset("m4"), results_of(m4_rows()))
    cells = tmp_path / "cells.csv"
    cells.write_text(cells_csv(m4_rows()))
    shape = ["--input-tokens", 512, "--output-tokens", 256, "--concurrency", 32]
    phi = ["--model", "Phi-4-mini-instruct", *shape]
    text = run(*phi, "--evidence", directory)
    assert text.startswith("TP2 for performance: Phi-4-mini-instruct")
    for word in ("evidence plan: sha256:", "evidence artifact: sha256:", "evidence ledger: sha256"):
        assert word in text
    data = json.loads(run(*phi, "--evidence", cells, "--json"))
    assert (data["answer"], data["because"]) == ("TP2", "performance")
    assert data["evidence"]["cells"].startswith("sha256:")
    gated = ["--input-tokens", 2048, "--output-tokens", 128, "--concurrency", 64]
    data = json.loads(
        run("--model", "Qwen2.5-3B-Instruct", *gated, "--evidence", directory, "--json")
    )
    assert (data["answer"], data["because"]) == ("TP1", "capacity")
    assert "14895 MiB" in data["reasons"][0]
    run(*phi, "--evidence", tmp_path / "none", code=3)
