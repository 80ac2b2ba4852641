"""Serving metrics, by the definitions of upstream's ``vllm bench serve`` (0.18.1).

Per request, with the clock started right before the request is sent:

========  =====================================================================================
TTFT      first chunk with a choice - start
ITL       each later chunk with a choice - the one before it; several a request
E2E       last chunk with a choice - start
TPOT      (E2E - TTFT) / (output tokens - 1); none for one token
========  =====================================================================================

Output tokens are what the server reports as usage. Throughputs divide by the time from the first
request's start to the last one's end, ramp and drain included. Means are over all requests (ITL:
over all intervals), standard deviations are the population's, percentiles interpolate linearly as
numpy's do. A test holds all of it equal to upstream's own function on random data.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PERCENTILES = (50, 90, 95, 99)


@dataclass
class Observation:
    """One request as the client saw it; times in seconds, `start` on a monotonic clock."""

    start: float = 0.0
    ttft: float = 0.0
    itl: list[float] = field(default_factory=list)
    latency: float = 0.0
    input_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None


def summarize(observations: Sequence[Observation], duration_s: float) -> dict[str, Any]:
    """The metrics of a run that took `duration_s`; failed requests count as failed alone.

    Keys: throughputs per second, ``<latency>_ms`` means with ``_std``, ``_p50`` … beside them.
    A latency of which there is no observation is None.
    """
    good = [item for item in observations if item.error is None]
    inputs = sum(item.input_tokens or 0 for item in good)
    outputs = sum(item.output_tokens or 0 for item in good)
    result: dict[str, Any] = {
        "requests": len(good),
        "failed_requests": len(observations) - len(good),
        "duration_s": duration_s,
        "input_tokens": inputs,
        "output_tokens": outputs,
        "requests_per_s": len(good) / duration_s,
        "output_tokens_per_s": outputs / duration_s,
        "total_tokens_per_s": (inputs + outputs) / duration_s,
    }
    tpots = [
        (item.latency - item.ttft) / (item.output_tokens - 1)
        for item in good
        if (item.output_tokens or 0) > 1
    ]
    result |= _latency("ttft_ms", [item.ttft for item in good])
    result |= _latency("tpot_ms", tpots)
    result |= _latency("itl_ms", [interval for item in good for interval in item.itl])
    result |= _latency("e2e_ms", [item.latency for item in good])
    return result


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The percentile of values in ascending order, interpolated linearly.

    >>> percentile([1.0, 2.0, 4.0], 75)
    3.0
    """
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """The population's standard deviation."""
    center = mean(values)
    return math.sqrt(math.fsum((value - center) ** 2 for value in values) / len(values))


def _latency(name: str, seconds: Sequence[float]) -> Mapping[str, float | None]:
    keys = [name, f"{name}_std", *(f"{name}_p{percent}" for percent in PERCENTILES)]
    if not seconds:
        return dict.fromkeys(keys)
    ordered = sorted(seconds)
    values = [mean(seconds), deviation(seconds)]
    values += [percentile(ordered, percent) for percent in PERCENTILES]
    return {key: value * 1000 for key, value in zip(keys, values, strict=True)}
