"""Two studies side by side: the same cells under conditions that differ in one variable.

Repetitions of different sweeps are not matched, so arms are compared with Welch's interval; each
study's own crossovers stand beside each other and are not tested against each other.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvreg.analysis.conditions import Difference, differences, open_study, require_comparable
from kvreg.analysis.crossover import GATED, INCONCLUSIVE, verdict
from kvreg.analysis.metrics import METRICS
from kvreg.analysis.points import Arm, arms_of
from kvreg.analysis.results import Analysis
from kvreg.analysis.statistics import LEVEL, estimate, welch
from kvreg.analysis.study import analyze
from kvreg.analysis.table import GATED as GATED_STATE
from kvreg.analysis.table import CellTable
from kvreg.analysis.text import grid
from kvreg.errors import ContractError


@dataclass(frozen=True)
class Side:
    """One of the two studies."""

    name: str
    analysis: Analysis

    def answers(self) -> dict[tuple[str, str], int | str]:
        """First sustained favourable concurrency of output throughput by model and workload."""
        return {found.subject: found.answer for found in self.analysis.crossovers()}


@dataclass(frozen=True)
class Comparison:
    """The arms that both studies have, and their crossovers."""

    a: Side
    b: Side
    variable: str | None
    allowed: tuple[str, ...]
    differences: tuple[Difference, ...]
    arms: tuple[Mapping[str, Any], ...]
    only: Mapping[str, Sequence[str]]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data.

        ::

            variable     the group that is under study, null where nothing differs
            differences  [{"key", "group", "a", "b"}], `allowed` the groups or keys that may differ
            identities   {"a": identity, "b": identity}, see `Analysis.to_dict`
            crossovers   [{"model", "workload", "a", "b"}], of output throughput
            arms         [{"model", "workload", "concurrency", "tp", "gated": ["a"|"b"],
                           "metrics": {name: {"a": mean, "b": mean, "ratio": b / a,
                                              "interval": of b - a, or null, "n": [a, b],
                                              "verdict": of b}}}]
            only         {"a": [arms that b lacks], "b": [..]}
        """
        first, second = self.a.answers(), self.b.answers()
        return {
            "schema": 1,
            "kind": "kvreg-comparison",
            "a": self.a.name,
            "b": self.b.name,
            "variable": self.variable,
            "allowed": list(self.allowed),
            "differences": [item.to_dict() for item in self.differences],
            "identities": {
                "a": dict(self.a.analysis.identity),
                "b": dict(self.b.analysis.identity),
            },
            "interval": "Welch, two-sided, unpaired: repetitions of two sweeps are not matched",
            "level": LEVEL,
            "crossovers": [
                {
                    "model": model,
                    "workload": workload,
                    "a": first.get((model, workload)),
                    "b": second.get((model, workload)),
                }
                for model, workload in sorted({*first, *second})
            ],
            "arms": [dict(arm) for arm in self.arms],
            "only": {side: list(names) for side, names in self.only.items()},
        }


def compare(
    a: Path, b: Path, *, variable: str | None = None, allowed: Iterable[str] = ()
) -> Comparison:
    """Put two sweeps side by side if they differ in the variable under study alone.

    Raises `ContractError` naming the differences otherwise, and where no cell is in both.
    """
    (one, first), (two, second) = open_study(a), open_study(b)
    found = differences(first, second)
    allowed = tuple(allowed)
    chosen = require_comparable(found, variable, allowed)
    left, right = arms_of(one), arms_of(two)
    common = [key for key in left if key in right]
    if not common:
        raise ContractError(
            "the sweeps have no cell in common",
            expected="some model, workload, concurrency and TP degree that are in both",
        )
    return Comparison(
        _side(a, one),
        _side(b, two),
        chosen,
        allowed,
        found,
        tuple(_arm(left[key], right[key]) for key in common),
        {
            "a": [_name(arm) for key, arm in left.items() if key not in right],
            "b": [_name(arm) for key, arm in right.items() if key not in left],
        },
    )


def _side(path: Path, table: CellTable) -> Side:
    return Side(str(table.identity.get("name") or path.name), analyze(table))


def _arm(a: Arm, b: Arm) -> dict[str, Any]:
    gated = [name for name, arm in (("a", a), ("b", b)) if arm.in_state(GATED_STATE)]
    metrics = {}
    for name, metric in METRICS.items():
        first, second = list(a.values(name).values()), list(b.values(name).values())
        if not first or not second:
            continue
        one, two = estimate(first).mean, estimate(second).mean
        found = welch(first, second)
        low, high = (found.low, found.high) if found else (None, None)
        says = verdict(low, high, higher_is_better=metric.higher_is_better)
        metrics[name] = {
            "a": one,
            "b": two,
            "ratio": two / one if one else None,
            "interval": found.interval if found and not gated else None,
            "n": [len(first), len(second)],
            "verdict": GATED if gated else says,
        }
    return {
        "model": a.model,
        "workload": a.workload,
        "concurrency": a.concurrency,
        "tp": a.tp,
        "gated": gated,
        "metrics": metrics,
    }


def _name(arm: Arm) -> str:
    return f"{arm.model} {arm.workload} C={arm.concurrency} TP={arm.tp}"


def comparison_text(data: Mapping[str, Any], metrics: Sequence[str]) -> str:
    """The text of `Comparison.to_dict`, with a table for each of `metrics`."""
    lines = [f"a: {data['a']}", f"b: {data['b']}"]
    lines.append(f"under study: {data['variable'] or 'nothing differs'}")
    for item in data["differences"]:
        told = "" if item["group"] == data["variable"] else ", allowed"
        known = {**item, "a": item["a"], "b": item["b"]}
        lines.append(f"  {Difference(**known)}{told}")
    for side in ("a", "b"):
        if pending := data["identities"][side].get("pending"):
            lines.append(f"{side} is unfinished: {pending} cells have no result")
    parts = ["\n".join(lines)]
    rows = [[f"{c['model']} {c['workload']}", c["a"], c["b"]] for c in data["crossovers"]]
    parts.append(
        "first sustained favourable concurrency of output throughput\n" + grid(["", "a", "b"], rows)
    )
    for name in metrics:
        parts.append(_metric_text(data, name))
    for side, other in (("a", "b"), ("b", "a")):
        if missing := data["only"][side]:
            parts.append(f"{len(missing)} arms of {side} are not in {other}")
    return "\n\n".join(part for part in parts if part)


def _metric_text(data: Mapping[str, Any], name: str) -> str:
    metric = METRICS[name]
    rows = []
    for arm in data["arms"]:
        found = arm["metrics"].get(name)
        subject = f"{arm['model']} {arm['workload']}"
        if found is None:
            gated = f"gated in {' and '.join(arm['gated'])}" if arm["gated"] else INCONCLUSIVE
            rows.append([subject, arm["concurrency"], arm["tp"], *[None] * 5, gated])
            continue
        low, high = found["interval"] or (None, None)
        rows.append(
            [
                subject,
                arm["concurrency"],
                arm["tp"],
                found["a"],
                found["b"],
                found["ratio"],
                low,
                high,
                found["verdict"],
            ]
        )
    header = ["", "C", "TP", "a", "b", "b/a", "low", "high", "b is"]
    return f"{metric.label} ({metric.unit}), interval of b - a\n{grid(header, rows)}"
