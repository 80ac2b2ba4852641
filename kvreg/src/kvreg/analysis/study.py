"""A whole study: every point of every pair of TP degrees, judged metric by metric."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kvreg.analysis.crossover import (
    FAVOURABLE,
    GATED,
    INCONCLUSIVE,
    UNFAVOURABLE,
    Crossover,
    find_crossover,
    verdict,
)
from kvreg.analysis.metrics import METRICS, PRIMARY, Metric
from kvreg.analysis.points import Arm, Point, Subject, arms_of, empty_arm, judge, tested
from kvreg.analysis.results import Analysis, Pair, Verdict
from kvreg.analysis.statistics import LEVEL, Prior, fit_prior, holm, moderate
from kvreg.analysis.table import INCOMPATIBLE, CellRow, CellTable, check_rows
from kvreg.errors import ContractError


def analyze(
    rows: Iterable[CellRow] | CellTable,
    *,
    baseline: int | None = None,
    metrics: Iterable[str] = tuple(METRICS),
    level: float = LEVEL,
) -> Analysis:
    """Judge every metric at every point, for the baseline TP degree against each higher one.

    The baseline is the smallest degree that was tried unless it is given. The first pair (baseline
    against the next higher degree) is the default one; with one degree alone there is none, and no
    crossover. A subject with planned cells that have no result is incomplete, whatever the others
    say. Raises `ContractError` for rows that cannot be what they say (see `check_rows`) and for a
    baseline above which nothing was tried.
    """
    table = rows if isinstance(rows, CellTable) else CellTable(tuple(rows), {"source": "rows"})
    rows = table.rows
    check_rows(rows)
    chosen = tuple(METRICS[name] for name in METRICS if name == PRIMARY or name in set(metrics))
    arms = arms_of(rows)
    pairs = _pairs(sorted({row.tp for row in rows}), baseline)
    incompatible = _incompatible(arms.values())
    points = tuple(
        (pair, judge(*both, level, metrics=chosen, label=table.label))
        for pair in pairs
        for both in _matches(arms, pair, incompatible)
    )
    extras: dict[tuple[Pair, Subject, int, str], dict[str, Any]] = {}
    priors: dict[tuple[Pair, str], Prior | None] = {}
    verdicts = []
    for pair in pairs:
        mine = [point for at, point in points if at == pair]
        for metric in chosen:
            priors[pair, metric.name] = _compare_beyond(pair, metric, mine, level, extras)
            verdicts += list(_verdicts(pair, metric, mine, extras, table.pending))
    return Analysis(
        table.identity,
        table.label,
        table.gates,
        chosen,
        level,
        tuple(arms.values()),
        pairs,
        points,
        tuple(verdicts),
        tuple(incompatible.values()),
        extras,
        priors,
    )


def _pairs(degrees: Sequence[int], baseline: int | None) -> tuple[Pair, ...]:
    first = degrees[0] if baseline is None else baseline
    if first not in degrees:
        raise ContractError(
            f"no cell has TP {first}",
            expected=f"a baseline among {', '.join(map(str, degrees))}",
        )
    pairs = tuple(Pair(first, degree) for degree in degrees if degree > first)
    if not pairs and len(degrees) > 1:
        raise ContractError(
            "there is nothing to compare",
            expected=f"cells of a TP degree above {first}",
            found=f"TP {', '.join(map(str, degrees))} alone",
        )
    return pairs


def _incompatible(arms: Iterable[Arm]) -> dict[tuple[Subject, int], dict[str, Any]]:
    """Arms of a subject that never ran, by (subject, tp): a negative result, not a performance."""
    states: dict[tuple[Subject, int], list[str]] = {}
    for arm in arms:
        key = ((arm.model, arm.workload), arm.tp)
        states.setdefault(key, []).extend(row.state for row in arm.cells.values())
    return {
        ((model, workload), tp): {
            "model": model,
            "workload": workload,
            "tp": tp,
            "cells": len(found),
        }
        for ((model, workload), tp), found in states.items()
        if set(found) == {INCOMPATIBLE}
    }


def _matches(
    arms: Mapping[tuple[str, str, int, int], Arm],
    pair: Pair,
    incompatible: Mapping[tuple[Subject, int], Any],
) -> Iterator[tuple[Arm, Arm]]:
    """The arms of every point of a pair; a concurrency that one arm lacks is still a tested one."""
    subjects = sorted({key[:2] for key in arms})
    for subject in subjects:
        if any((subject, tp) in incompatible for tp in (pair.baseline, pair.candidate)):
            continue
        grid = sorted({key[2] for key in arms if key[:2] == subject and key[3] in _degrees(pair)})
        for concurrency in grid:
            found = {tp: arms.get((*subject, concurrency, tp)) for tp in _degrees(pair)}
            either = next(arm for arm in found.values() if arm is not None)
            first = found[pair.baseline] or empty_arm(either, pair.baseline)
            second = found[pair.candidate] or empty_arm(either, pair.candidate)
            yield first, second


def _degrees(pair: Pair) -> tuple[int, int]:
    return (pair.baseline, pair.candidate)


def _compare_beyond(
    pair: Pair,
    metric: Metric,
    points: Sequence[Point],
    level: float,
    extras: dict[tuple[Pair, Subject, int, str], dict[str, Any]],
) -> Prior | None:
    """Holm's correction and the moderated cross-check of every estimable point."""
    family = {
        (pair, point.subject, point.concurrency, metric.name): point.judgements[metric.name]
        for point in points
        if point.judgements[metric.name].estimable  # a gated point never is
    }
    p_values = {key: found.estimate.p for key, found in family.items() if found.estimate}
    adjusted = holm({key: p for key, p in p_values.items() if p is not None})
    complete = {
        key: found.log_ratios
        for key, found in family.items()
        if len(found.log_ratios) == len(found.differences)
    }
    prior = fit_prior([complete[key] for key in sorted(complete, key=_order)])
    for key, found in family.items():
        keeps = adjusted[key] < 1 - level
        extras[key] = {
            "holm": {"p": adjusted[key], "verdict": found.verdict if keeps else INCONCLUSIVE}
        }
        if prior is not None and key in complete:
            extras[key]["moderated"] = _moderated(
                complete[key], prior, metric, found.verdict, level
            )
    return prior


def _order(key: tuple[Pair, Subject, int, str]) -> tuple[Any, ...]:
    return (key[1], key[2])


def _moderated(
    ratios: Sequence[float], prior: Prior, metric: Metric, plain: str, level: float
) -> dict[str, Any]:
    found = moderate(ratios, prior, level)
    says = verdict(found.low, found.high, higher_is_better=metric.higher_is_better)
    above = found.probability
    return {
        "ratio": math.exp(found.mean),
        "interval": [math.exp(found.low), math.exp(found.high)],
        "probability_better": above if metric.higher_is_better else 1 - above,
        "verdict": says,
        "agrees": says == plain,
    }


def _verdicts(
    pair: Pair,
    metric: Metric,
    points: Sequence[Point],
    extras: Mapping[tuple[Pair, Subject, int, str], Mapping[str, Any]],
    pending: Mapping[Subject, int],
) -> Iterator[Verdict]:
    for subject in sorted({point.subject for point in points}):
        mine = {point.concurrency: point for point in points if point.subject == subject}
        judged = {c: mine[c].judgements[metric.name] for c in tested(list(mine.values()))}
        if metric.name != PRIMARY and not any(found.differences for found in judged.values()):
            continue  # not measured at all: no row in this metric's table
        plain = {c: found.verdict for c, found in judged.items()}
        corrected = {
            c: extras.get((pair, subject, c, metric.name), {}).get("holm", {}).get("verdict", says)
            for c, says in plain.items()
        }
        yield Verdict(
            pair,
            metric,
            subject,
            find_crossover(plain),
            find_crossover(corrected),
            _descriptive(metric, judged),
            any(found.estimable for found in judged.values()),
            pending.get(subject, 0),
        )


def _descriptive(metric: Metric, judged: Mapping[int, Any]) -> Crossover | None:
    """The rule applied to means without intervals; None where nothing could be compared."""
    if not any(found.estimate for found in judged.values()):
        return None
    says = {}
    for concurrency, found in judged.items():
        if found.verdict == GATED:
            says[concurrency] = GATED
        elif found.estimate is None or found.estimate.mean == 0:
            says[concurrency] = INCONCLUSIVE
        else:
            better = (found.estimate.mean > 0) == metric.higher_is_better
            says[concurrency] = FAVOURABLE if better else UNFAVOURABLE
    return find_crossover(says)
