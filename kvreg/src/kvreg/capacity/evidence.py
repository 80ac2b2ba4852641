"""Predicted against observed: what a sweep's cells say about the arithmetic.

The *need* is weights plus the cache of as many sequences as the concurrency, all at full length.
vLLM takes a share of the GPU's memory from the start (``gpu-memory-utilization``) and lets requests
wait where its cache is too small; where plan and facts say that *reservation*, it is the prediction
of what is used, and else the need is. What was observed beyond the prediction is the engine's own.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from kvreg.analysis.table import GATED, MEASURED, CellRow
from kvreg.capacity.architecture import DTYPES, Architecture
from kvreg.capacity.memory import MIB, Terms, kv_bytes
from kvreg.capacity.parameters import obstacle, per_rank


@dataclass(frozen=True)
class Observation:
    """One arm of the evidence against its prediction; memory in MiB per GPU.

    `outcome`: ``as predicted``, ``gated beyond the prediction`` (it should have stayed under the
    boundary), ``ran although predicted beyond`` it, ``below the weights`` (less was observed than
    the weights alone: another configuration or dtype ran) or ``no boundary``. `waits`: the need is
    more than the reservation, so not all requests can have run at once.
    """

    workload: str
    tokens: int
    concurrency: int
    tp: int
    weights_mib: float
    need_mib: float
    reserved_mib: float | None
    observed_mib: float | None
    repetitions: int
    gated: int
    outcome: str

    @property
    def predicted_mib(self) -> float:
        """The reservation where it is known, else the need."""
        return self.need_mib if self.reserved_mib is None else self.reserved_mib

    @property
    def beyond_mib(self) -> float | None:
        """What was observed beyond the prediction."""
        return None if self.observed_mib is None else self.observed_mib - self.predicted_mib

    def to_dict(self) -> dict[str, Any]:
        """The observation as JSON-ready data."""
        return {
            **vars(self),
            "predicted_mib": self.predicted_mib,
            "beyond_mib": self.beyond_mib,
            "waits": self.reserved_mib is not None and self.need_mib > self.reserved_mib,
        }


def reservation(directory: Path, model: str) -> float | None:
    """MiB per GPU that the engine takes from the start; None where plan or facts do not say."""
    from kvreg.sweep.plan import load_plan

    share = load_plan(directory).settings(model).get("gpu-memory-utilization")
    try:
        facts = json.loads((directory / "facts.json").read_bytes())
    except FileNotFoundError:
        return None
    sizes = [gpu.get("memory_mib") for gpu in facts.get("gpus") or [] if gpu.get("visible", True)]
    if not isinstance(share, float | int) or not sizes or None in sizes:
        return None
    return float(share * min(sizes))


def observations(
    arch: Architecture, terms: Terms, rows: Sequence[CellRow], reserved: float | None = None
) -> tuple[Observation, ...]:
    """The arms of `rows` (of one model) that ran, in order."""
    arms: dict[tuple[str, int, int], list[CellRow]] = {}
    for row in rows:
        if row.state in (MEASURED, GATED) and row.input_tokens is not None:
            arms.setdefault((row.workload, row.concurrency, row.tp), []).append(row)
    return tuple(
        _observed(arch, terms, cells, reserved)
        for (_, _, tp), cells in sorted(arms.items())
        if obstacle(arch, tp) is None
    )


def beyond(found: Sequence[Observation]) -> dict[str, dict[str, float]]:
    """The median and the most that was observed beyond the prediction, by TP degree."""
    by_tp: dict[str, list[float]] = {}
    for item in found:
        if item.beyond_mib is not None:
            by_tp.setdefault(str(item.tp), []).append(item.beyond_mib)
    return {
        tp: {"median_mib": median(values), "max_mib": max(values)} for tp, values in by_tp.items()
    }


def _observed(
    arch: Architecture, terms: Terms, cells: Sequence[CellRow], reserved: float | None
) -> Observation:
    first = cells[0]
    tokens = (first.input_tokens or 0) + first.output_tokens
    weights = per_rank(arch, first.tp) * DTYPES[terms.dtype]
    cache = kv_bytes(arch, tokens, terms.kv_dtype, tp=first.tp, block=terms.block)
    need = (weights + cache * first.concurrency) / MIB + terms.overhead_mib
    if reserved is not None:
        reserved += terms.overhead_mib
    peaks = [row.max_gpu_memory_mib for row in cells if row.max_gpu_memory_mib is not None]
    observed = sum(peaks) / len(peaks) if peaks else None
    gated = sum(row.state == GATED for row in cells)
    predicted = need if reserved is None else reserved
    return Observation(
        first.workload,
        tokens,
        first.concurrency,
        first.tp,
        weights / MIB,
        need,
        reserved,
        observed,
        len(cells),
        gated,
        _outcome(terms.boundary_mib, predicted, gated, observed, weights / MIB),
    )


def _outcome(
    boundary: float | None, predicted: float, gated: int, observed: float | None, weights: float
) -> str:
    if observed is not None and observed < weights:
        return "below the weights"
    if boundary is None:
        return "no boundary"
    if (predicted > boundary) == bool(gated):
        return "as predicted"
    return "gated beyond the prediction" if gated else "ran although predicted beyond"
