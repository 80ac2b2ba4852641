"""Rows: one is one fresh server, and nothing else is a replication."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from kvreg.analysis.metrics import METRICS

MEASURED, GATED = "MEASURED", "RESOURCE_GATED"
INCOMPATIBLE, FAILED = "INCOMPATIBLE", "FAILED"
STATES = (MEASURED, GATED, INCOMPATIBLE, FAILED)


@dataclass(frozen=True)
class CellRow:
    """One cell: what was asked for, how it ended, and what was measured (None where nothing was).

    Throughputs in 1/s, latencies (means over the cell's requests) in ms, memory in MiB per GPU.
    `input_tokens` is None where prompts were texts. `reason` says why a cell was not measured.
    """

    model: str
    workload: str
    input_tokens: int | None
    output_tokens: int
    concurrency: int
    tp: int
    repetition: int
    state: str
    output_tokens_per_s: float | None = None
    requests_per_s: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None
    max_gpu_memory_mib: float | None = None
    reason: str | None = None

    @property
    def key(self) -> tuple[str, str, int, int, int]:
        """What makes the cell unique: model, workload, concurrency, tp, repetition."""
        return (self.model, self.workload, self.concurrency, self.tp, self.repetition)

    def value(self, metric: str) -> float | None:
        """The measured value of `metric`, or None."""
        number: float | None = getattr(self, metric)
        return number

    def __str__(self) -> str:
        return (
            f"{self.model} {self.workload} C={self.concurrency} TP={self.tp} "
            f"repetition {self.repetition}"
        )


COLUMNS = tuple(item.name for item in fields(CellRow) if item.name != "reason")
"""The columns of a bare cell table, in the order in which they are written."""

COUNTS = ("input_tokens", "output_tokens", "concurrency", "tp", "repetition")
"""The columns that are whole numbers."""

NUMBERS = (*METRICS, "max_gpu_memory_mib")
"""The columns that are measured."""


@dataclass(frozen=True)
class CellTable:
    """Checked rows and where they come from (`identity`, see `Analysis.to_dict`).

    `label` is set where the rows are no paired comparison of fresh servers, and says what they
    are. `gates` are the compatibility gates: model, tp, state, reason. `pending` counts the planned
    cells of a (model, workload) that have no result yet.
    """

    rows: tuple[CellRow, ...]
    identity: Mapping[str, Any]
    label: str | None = None
    gates: tuple[Mapping[str, Any], ...] = ()
    pending: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def __iter__(self) -> Iterator[CellRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)
