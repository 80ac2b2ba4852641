"""How many requests a cell sends, from a pilot.

With `concurrency` C requests in flight, n requests of latencies L_i take about sum(L_i) / C, so the
relative error of throughput is that of the mean latency: CV / sqrt(n), CV the coefficient of
variation of the latencies of the pilot. For a 95 % interval of half width p (relative):

    n = (1.96 CV / p)^2

rounded up to whole waves of C requests, at least `min_waves` of them (ramp and drain are part of
the measurement and weigh less the more waves there are) and at least what takes `min_seconds` at
the pilot's pace (latencies that hardly vary say nothing of what drifts over seconds), at most
`max_requests`, and at most what `max_seconds` allow at that pace, but never less than one wave.

The pilot runs in the server of the first cell of a (model, workload, concurrency); the number then
holds for all its arms and repetitions, so that they do the same work. The pilot's own figures are
not data. It describes the precision of one cell: repetitions, not requests, carry inference.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvreg.sweep.design import Requests
from kvreg.sweep.metrics import deviation, mean

_NORMAL_95 = 1.959964


@dataclass(frozen=True)
class Chosen:
    """The number of requests and what decided it.

    `half_width` is the relative half width to be expected of a cell's throughput; `bound` names
    the bound that decided: ``precision``, ``min_waves``, ``min_seconds``, ``max_requests`` or
    ``max_seconds``.
    """

    requests: int
    variation: float
    half_width: float
    pace_s: float
    bound: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return asdict(self)


def choose_requests(
    rules: Requests, concurrency: int, latencies: Sequence[float], duration_s: float
) -> Chosen:
    """The number of requests, given the latencies (s) of a pilot that took `duration_s`."""
    variation = deviation(latencies) / mean(latencies)
    pace = duration_s / len(latencies)
    wanted = _waves((_NORMAL_95 * variation / rules.precision) ** 2, concurrency)
    requests, bound = wanted, "precision"
    for least, name in (
        (rules.min_waves * concurrency, "min_waves"),
        (_waves(rules.min_seconds / pace, concurrency), "min_seconds"),
    ):
        if least >= requests:
            requests, bound = least, name
    for most, name in (
        (rules.max_requests, "max_requests"),
        (int(rules.max_seconds / pace), "max_seconds"),
    ):
        most = max(most // concurrency, 1) * concurrency
        if requests > most:
            requests, bound = most, name
    return Chosen(
        requests=requests,
        variation=variation,
        half_width=_NORMAL_95 * variation / math.sqrt(requests),
        pace_s=pace,
        bound=bound,
    )


def without_pilot(rules: Requests, concurrency: int) -> int:
    """The number of requests when the plan has no pilot: the least number of waves."""
    return rules.min_waves * concurrency


def _waves(requests: float, concurrency: int) -> int:
    return math.ceil(requests / concurrency) * concurrency
