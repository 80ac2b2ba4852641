"""Latency and bandwidth of a communication measurement: T(S) = a + S/b.

The model is the usual one of a message's cost (Hockney 1994): a latency `a` and a bandwidth `b`.
Two fits are made of it, because they answer two questions:

* `plain`: ordinary least squares of T. Large payloads decide; the latency is what they leave over.
* `relative`: least squares of the relative error, each payload weighted by 1/T². Every payload
  counts alike, so that the latency that small messages see is fitted too.

A repetition (fresh processes) is what repeats: the collectives inside one share its processes, so
they are reduced to one value per repetition and payload, and a line is fitted to each repetition.
Intervals are two-sided Student t over the repetitions' coefficients (n - 1 degrees of freedom).
They hold whatever the noise does across payloads and inside a repetition. The textbook interval,
from the scatter of all points around one line, does not: times vary in proportion to themselves,
so that the largest payload alone decides an unweighted line. It is given too (`scatter`), and is
all that there is for a single repetition.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvreg.errors import ContractError, NotFoundError, UsageError
from kvreg.nccl.design import TIMERS
from kvreg.nccl.record import Record

LEVEL = 0.95

STATISTICS = ("mean", "median")

WEIGHTS = ("plain", "relative")


@dataclass(frozen=True)
class Estimate:
    """A value with its interval; a bound is None where the interval is open on that side."""

    value: float | None
    low: float | None
    high: float | None

    def to_dict(self) -> dict[str, float | None]:
        """The estimate as JSON-ready data."""
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Line:
    """A fitted line: `latency_us` is a, `bandwidth` is b in GB/s (10⁹ bytes a second).

    `basis` says what the intervals are from: ``repetitions`` or ``scatter``.
    """

    latency_us: Estimate
    bandwidth: Estimate
    basis: str
    points: int

    def time_us(self, payload: int) -> float | None:
        """The fitted time of one payload; None where the line falls."""
        if self.latency_us.value is None or self.bandwidth.value is None:
            return None
        return self.latency_us.value + payload / (self.bandwidth.value * 1000)


def fit_line(
    payloads: Sequence[float],
    times_us: Sequence[float],
    *,
    weights: str = "plain",
    repetitions: Sequence[int] | None = None,
    level: float = LEVEL,
) -> Line:
    """Fit T(S) = a + S/b to points (bytes, microseconds).

    `weights` is ``plain`` or ``relative``: with the latter a point weighs 1/T̄², T̄ being the mean
    of its payload's times, so that noise does not choose its own weight. `repetitions` says which
    repetition each point is of; with two or more, intervals are over repetitions, else from the
    scatter of the points. Raises `UsageError` for fewer than three points, fewer than two
    payloads, or repetitions that lack payloads that others have.

    >>> line = fit_line([1000, 2000, 3000], [11.0, 12.0, 13.0])
    >>> round(line.latency_us.value, 6), round(line.bandwidth.value, 6)
    (10.0, 1.0)
    """
    import numpy as np

    if weights not in WEIGHTS:
        raise UsageError("unknown weights", expected=" or ".join(WEIGHTS), found=weights)
    x, y = np.asarray(payloads, float), np.asarray(times_us, float)
    if len(x) < 3 or len(set(x)) < 2:
        raise UsageError(
            "too little to fit a line to",
            expected="three points of two payloads",
            found=f"{len(x)} points of {len(set(x))} payloads",
        )
    means = {size: y[x == size].mean() for size in set(x)}
    scale = np.array([means[size] if weights == "relative" else 1.0 for size in x])
    (slope, latency), covariance = _least_squares(x, y, scale)
    groups = np.asarray(repetitions if repetitions is not None else [0] * len(x))
    if len(set(groups)) < 2:
        slope_error, latency_error = np.sqrt(np.diag(covariance))
        freedom, basis = len(x) - 2, "scatter"
    else:
        if len({tuple(sorted(x[groups == group])) for group in set(groups)}) > 1:
            raise UsageError("not every repetition has every payload")
        # The same weights for all: the mean of these lines is the line through all points.
        lines = [
            _least_squares(x[own], y[own], scale[own])[0]
            for own in (groups == group for group in sorted(set(groups)))
        ]
        slope_error, latency_error = np.std(lines, axis=0, ddof=1) / math.sqrt(len(lines))
        freedom, basis = len(lines) - 1, "repetitions"
    return Line(
        _student(float(latency), float(latency_error), freedom, level),
        _bandwidth(_student(float(slope), float(slope_error), freedom, level)),
        basis,
        len(x),
    )


def _least_squares(x: Any, y: Any, scale: Any) -> tuple[Any, Any]:
    """Slope and intercept of the line with the least sum of (residual/scale)², and covariance."""
    import numpy as np

    if len(x) < 3:  # two points leave no scatter to make a covariance of
        return np.polyfit(x, y, 1, w=1 / scale), np.full((2, 2), math.nan)
    return np.polyfit(x, y, 1, w=1 / scale, cov=True)


def _student(value: float, error: float, freedom: int, level: float) -> Estimate:
    from scipy import stats

    reach = float(stats.t.ppf((1 + level) / 2, freedom)) * error
    return Estimate(value, value - reach, value + reach)


def _bandwidth(slope: Estimate) -> Estimate:
    """µs per byte as GB/s: 1/x turns an interval round, and one that reaches zero is open above."""

    def inverse(value: float | None) -> float | None:
        return 1e-3 / value if value is not None and value > 0 else None

    return Estimate(inverse(slope.value), inverse(slope.high), inverse(slope.low))


def bus_factor(ranks: int) -> float:
    """What each link carries of an all-reduce's payload, in both directions: 2(n-1)/n.

    Bus bandwidth, as nccl-tests defines it, is algorithm bandwidth (payload over time) times this.
    """
    return 2 * (ranks - 1) / ranks


def analyse(record: Record, *, statistic: str = "mean", level: float = LEVEL) -> dict[str, Any]:
    """Every timer's table and fits as JSON-ready data (schema 1).

    `statistic` (``mean`` or ``median``) reduces a repetition's collectives of one payload to one
    value. With the mean, both fits are the ones over all observations. Raises `ContractError` when
    nothing was measured.
    """
    if statistic not in STATISTICS:
        raise UsageError("unknown statistic", expected=" or ".join(STATISTICS), found=statistic)
    require_scientific()
    if not record.repetitions:
        raise ContractError(
            f"{record.path} has no repetition", remedy="run kvreg nccl with the same --out"
        )
    design = record.design
    unavailable = {
        timer: reason
        for repetition in record.repetitions.values()
        for timer, reason in repetition.unavailable.items()
    }
    timers: dict[str, Any] = {}
    for timer, meaning in TIMERS.items():
        entry: dict[str, Any] = {"meaning": meaning}
        if timer in unavailable:
            timers[timer] = entry | {"available": False, "reason": unavailable[timer]}
            continue
        timers[timer] = entry | {"available": True} | _timer(record, timer, statistic, level)
    return {
        "schema": 1,
        "kind": "nccl",
        "simulated": record.simulated,
        "design": design.to_dict(),
        "design_digest": design.digest,
        "environment": record.environment,
        "repetitions": sorted(record.repetitions),
        "missing_repetitions": record.missing(),
        "statistic": statistic,
        "level": level,
        "bus_factor": bus_factor(design.ranks),
        "timers": timers,
    }


def require_scientific() -> None:
    """Raise `NotFoundError` where numpy or scipy is missing; notebooks have both."""
    try:
        import numpy  # noqa: F401
        import scipy  # noqa: F401
    except ImportError as error:
        raise NotFoundError(
            f"a fit needs numpy and scipy, and there is no {error.name} here",
            remedy="use the notebook's interpreter, or install scipy; what was measured is kept",
        ) from None


def _timer(record: Record, timer: str, statistic: str, level: float) -> dict[str, Any]:
    import numpy as np

    reduce = np.mean if statistic == "mean" else np.median
    points: list[tuple[int, int, float]] = []  # repetition, bytes, microseconds
    pooled: dict[int, list[float]] = {}
    calls: dict[int, int] = {}
    for index, repetition in sorted(record.repetitions.items()):
        for sample in repetition.samples:
            if sample["timer"] == timer:
                points.append((index, sample["bytes"], float(reduce(sample["us"]))))
                pooled.setdefault(sample["bytes"], []).extend(sample["us"])
                calls[sample["bytes"]] = sample["calls"]
    entry: dict[str, Any] = {"observations": sum(map(len, pooled.values())), "fits": {}}
    lines: dict[str, Line] = {}
    if len(pooled) > 1 and len(points) > 2:
        repetitions, sizes, times = zip(*points, strict=True)
        for weights in WEIGHTS:
            line = fit_line(sizes, times, weights=weights, repetitions=repetitions, level=level)
            scatter = fit_line(sizes, times, weights=weights, level=level)
            lines[weights] = line
            entry["fits"][weights] = _line(line, record.design.ranks) | {
                "scatter": _line(scatter, record.design.ranks)
            }
    entry["payloads"] = [
        _payload(size, pooled[size], calls[size], points, lines, record.design.ranks)
        for size in sorted(pooled)
    ]
    return entry


def _payload(
    size: int,
    us: list[float],
    calls: int,
    points: list[tuple[int, int, float]],
    lines: dict[str, Line],
    ranks: int,
) -> dict[str, Any]:
    import numpy as np

    value = float(np.mean([time for _, bytes_, time in points if bytes_ == size]))
    algorithm = size / value / 1000
    p05, median, p95 = (float(q) for q in np.percentile(us, (5, 50, 95)))
    residuals = {}
    for name, line in lines.items():
        fitted = line.time_us(size)
        residuals[name] = (
            None
            if fitted is None
            else {"fitted_us": fitted, "us": value - fitted, "relative": (value - fitted) / value}
        )
    return {
        "bytes": size,
        "us": value,
        "mean_us": float(np.mean(us)),
        "median_us": median,
        "p05_us": p05,
        "p95_us": p95,
        "repetition_us": [time for _, bytes_, time in points if bytes_ == size],
        "calls": calls,
        "algorithm_bandwidth_GB_per_s": algorithm,
        "bus_bandwidth_GB_per_s": algorithm * bus_factor(ranks),
        "residuals": residuals,
    }


def _line(line: Line, ranks: int) -> dict[str, Any]:
    factor = bus_factor(ranks)
    band = line.bandwidth.to_dict()
    return {
        "intercept_us": line.latency_us.to_dict(),
        "algorithm_bandwidth_GB_per_s": band,
        "bus_bandwidth_GB_per_s": {
            key: None if value is None else value * factor for key, value in band.items()
        },
        "interval_from": line.basis,
        "points": line.points,
    }
