"""One point of a comparison: a model, a workload, a concurrency, a baseline and a candidate TP.

Repetitions are matched by their number. A repetition that is measured in one arm alone is left out
and named; nothing is ever imputed.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvreg.analysis.crossover import GATED, INCONCLUSIVE, verdict
from kvreg.analysis.metrics import METRICS, Metric
from kvreg.analysis.statistics import (
    LEVEL,
    Estimate,
    detectable_effect,
    estimate,
)
from kvreg.analysis.table import GATED as GATED_STATE
from kvreg.analysis.table import MEASURED, CellRow

Subject = tuple[str, str]
"""Model and workload: what has a crossover."""


@dataclass(frozen=True)
class Arm:
    """The repetitions of one TP degree at one point, by repetition number."""

    model: str
    workload: str
    concurrency: int
    tp: int
    cells: Mapping[int, CellRow]

    def values(self, metric: str) -> dict[int, float]:
        """The measured values of `metric` by repetition."""
        found = {number: row.value(metric) for number, row in sorted(self.cells.items())}
        return {number: value for number, value in found.items() if value is not None}

    def in_state(self, state: str) -> list[int]:
        """The repetitions that ended in `state`."""
        return sorted(number for number, row in self.cells.items() if row.state == state)

    def to_dict(self, names: Iterable[str], level: float) -> dict[str, Any]:
        """See `Analysis.to_dict`, ``arms``."""
        any_row = next(iter(self.cells.values()))
        metrics = {}
        for name in names:
            values = self.values(name)
            if values:
                mean = estimate(list(values.values()), level)
                metrics[name] = {
                    "values": {str(number): value for number, value in values.items()},
                    "mean": mean.mean,
                    "interval": mean.interval,
                }
        return {
            "model": self.model,
            "workload": self.workload,
            "input_tokens": any_row.input_tokens,
            "output_tokens": any_row.output_tokens,
            "concurrency": self.concurrency,
            "tp": self.tp,
            "states": {str(number): row.state for number, row in sorted(self.cells.items())},
            "reasons": {
                str(number): row.reason
                for number, row in sorted(self.cells.items())
                if row.reason is not None
            },
            "max_gpu_memory_mib": {
                str(number): value for number, value in self.values("max_gpu_memory_mib").items()
            },
            "metrics": metrics,
        }


def arms_of(rows: Iterable[CellRow]) -> dict[tuple[str, str, int, int], Arm]:
    """Group checked rows into arms by (model, workload, concurrency, tp), in that order."""
    cells: dict[tuple[str, str, int, int], dict[int, CellRow]] = {}
    for row in rows:
        key = (row.model, row.workload, row.concurrency, row.tp)
        cells.setdefault(key, {})[row.repetition] = row
    return {key: Arm(*key, cells[key]) for key in sorted(cells)}


@dataclass(frozen=True)
class Judgement:
    """What one metric says at one point. Differences are candidate minus baseline."""

    differences: Mapping[int, float]
    log_ratios: tuple[float, ...]
    estimate: Estimate | None
    baseline_mean: float | None
    verdict: str
    reason: str | None = None

    @property
    def estimable(self) -> bool:
        """Whether there is an interval."""
        return self.estimate is not None and self.estimate.low is not None

    def to_dict(
        self, holm: Mapping[str, Any] | None, moderated: Mapping[str, Any] | None, level: float
    ) -> dict[str, Any]:
        """See `Analysis.to_dict`, ``points``."""
        found = self.estimate
        return {
            "pairs": len(self.differences),
            "differences": {str(number): value for number, value in self.differences.items()},
            "mean": found.mean if found else None,
            "relative": self._relative(found.mean) if found else None,
            "interval": found.interval if found else None,
            "p": found.p if found else None,
            "verdict": self.verdict,
            "reason": self.reason,
            "holm": holm,
            "detectable": self._detectable(level),
            "moderated": moderated,
        }

    def _relative(self, value: float) -> float | None:
        return value / self.baseline_mean if self.baseline_mean else None

    def _detectable(self, level: float) -> dict[str, Any] | None:
        if self.estimate is None or self.estimate.sd is None:
            return None
        absolute = detectable_effect(self.estimate.n, level) * self.estimate.sd
        return {"absolute": absolute, "relative": self._relative(absolute)}


@dataclass(frozen=True)
class Point:
    """Baseline against candidate at one concurrency, judged metric by metric."""

    model: str
    workload: str
    concurrency: int
    baseline: Arm
    candidate: Arm
    left_out: tuple[tuple[int, str], ...]
    judgements: Mapping[str, Judgement]

    @property
    def subject(self) -> Subject:
        """Model and workload."""
        return (self.model, self.workload)

    @property
    def gated(self) -> dict[int, list[int]]:
        """The gated repetitions of each arm that has some, by TP degree."""
        found = {arm.tp: arm.in_state(GATED_STATE) for arm in (self.baseline, self.candidate)}
        return {tp: numbers for tp, numbers in found.items() if numbers}


def judge(
    baseline: Arm,
    candidate: Arm,
    level: float = LEVEL,
    *,
    metrics: Iterable[Metric] = tuple(METRICS.values()),
    label: str | None = None,
) -> Point:
    """Pair two arms of the same point by repetition and judge every metric.

    With a `label` the repetitions are no replications: means are compared and no interval is made.
    """
    gated = any(arm.in_state(GATED_STATE) for arm in (baseline, candidate))
    return Point(
        baseline.model,
        baseline.workload,
        baseline.concurrency,
        baseline,
        candidate,
        tuple(_left_out(baseline, candidate)),
        {
            metric.name: _judgement(metric, baseline, candidate, gated, label, level)
            for metric in metrics
        },
    )


def _judgement(
    metric: Metric, baseline: Arm, candidate: Arm, gated: bool, label: str | None, level: float
) -> Judgement:
    if gated:
        # not even the repetitions that were measured: those that ran out of memory are missing
        # from them by no accident
        reason = "a repetition passed the resource boundary: there is no valid comparison"
        return Judgement({}, (), None, None, GATED, reason)
    first, second = baseline.values(metric.name), candidate.values(metric.name)
    matched = [number for number in first if number in second]
    differences = {number: second[number] - first[number] for number in matched}
    ratios = tuple(
        math.log(second[number] / first[number])
        for number in matched
        if first[number] > 0 and second[number] > 0
    )
    found = estimate(list(differences.values()), level) if matched else None
    mean = math.fsum(first[number] for number in matched) / len(matched) if matched else None
    if found is not None and label is not None:
        return Judgement(
            differences, ratios, Estimate(found.n, found.mean), mean, INCONCLUSIVE, label
        )
    if found is None or found.n < 2:
        reason = _too_few(metric, first, second, len(matched))
        return Judgement(differences, ratios, found, mean, INCONCLUSIVE, reason)
    says = verdict(found.low, found.high, higher_is_better=metric.higher_is_better)
    return Judgement(differences, ratios, found, mean, says)


def _too_few(
    metric: Metric, first: Mapping[int, float], second: Mapping[int, float], pairs: int
) -> str:
    if not first and not second:
        return f"{metric.name} was not measured"
    return f"not estimable: {pairs} matched repetition{'' if pairs == 1 else 's'}, two are needed"


def _left_out(baseline: Arm, candidate: Arm) -> Iterable[tuple[int, str]]:
    """Repetitions that make no pair, with the reason in words."""
    for number in sorted({*baseline.cells, *candidate.cells}):
        reasons = []
        for arm in (baseline, candidate):
            row = arm.cells.get(number)
            if row is None:
                reasons.append(f"TP{arm.tp} has no such repetition")
            elif row.state != MEASURED:
                reasons.append(f"TP{arm.tp} is {row.state}")
        if reasons:
            yield number, "; ".join(reasons)


def empty_arm(like: Arm, tp: int) -> Arm:
    """An arm with no cells: the concurrency was tested with the other degree alone."""
    return Arm(like.model, like.workload, like.concurrency, tp, {})


def tested(points: Sequence[Point]) -> list[int]:
    """The concurrencies of `points`, in order."""
    return sorted({point.concurrency for point in points})
