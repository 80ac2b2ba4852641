"""What a running sweep says: cells done, time left, the last cell's result."""

import sys
import time
from types import TracebackType
from typing import Any

from kvreg.console import note, progress
from kvreg.sweep.cells import Cell
from kvreg.sweep.ledger import MEASURED, Result
from kvreg.sweep.plan import Plan
from kvreg.sweep.status import duration, seconds_per_cell


class Progress:
    """A bar on a terminal, a line a cell elsewhere. Use as a context manager."""

    def __init__(self, plan: Plan, total: int) -> None:
        self.plan = plan
        self.total = total
        self.results: list[Result] = []
        self._bar: Any = progress(total, "cells", unit=" cell")
        self._began = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()

    @property
    def cell_s(self) -> float:
        """What a cell is expected to take from here on."""
        return seconds_per_cell(self.plan, self.results)

    @property
    def left_s(self) -> float:
        """What is left of this session's cells."""
        return self.cell_s * (self.total - len(self.results))

    def done(self, cell: Cell, result: Result) -> None:
        """Count a result and say it."""
        self.results.append(result)
        line = (
            f"[{len(self.results)}/{self.total}] {cell.id} {in_words(result)}, "
            f"{duration(self.left_s)} left"
        )
        if sys.stderr.isatty():
            self._bar.write(line, file=sys.stderr)
            self._bar.update(1)
        else:
            note(line)


def in_words(result: Result) -> str:
    """A result in a few words."""
    if result.state != MEASURED:
        return f"{result.state}: {result.reason}"
    speed = result.metrics["output_tokens_per_s"]
    memory = result.metrics.get("max_gpu_memory_mib")
    text = f"{result.state} {speed:.1f} tok/s, TTFT {result.metrics['ttft_ms']:.0f} ms"
    return text + (f", {memory:.0f} MiB" if memory is not None else "")
