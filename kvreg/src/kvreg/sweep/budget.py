"""What a session still has time for: cells that are matched begin together or not at all.

The arms of one (shard, concurrency) run side by side. A session that ends between them leaves a
pair whose halves were measured hours apart, perhaps on two machines, so the time for all that is
left of a pair must be there before its first cell begins.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby

from kvreg.sweep.cells import Cell
from kvreg.sweep.ledger import Result
from kvreg.sweep.plan import Plan

_LATEST = 4


class Budget:
    """Seconds that are left until `ends` (of `time.monotonic`) for `cells`, in run order."""

    def __init__(self, plan: Plan, cells: Sequence[Cell], ends: float) -> None:
        self.plan = plan
        self.ends = ends
        self._pairs = [
            tuple(pair) for _, pair in groupby(cells, key=lambda c: (c.shard, c.concurrency))
        ]
        self._tp = {cell.id: cell.tp for cell in plan.cells()}

    def allows(
        self,
        done: Collection[str],
        results: Mapping[str, Result],
        ready: Callable[[Cell], bool] = lambda cell: True,
    ) -> bool:
        """Whether there is time for what is left of the pair of the next cell.

        `done` are the cells that this session has run, `results` all that the ledger has; `ready`
        says of a cell that it needs no passing of the gate first.
        """
        left = self._left(done)
        gates = {cell.tp for cell in left if not ready(cell)}
        seconds = sum(self._seconds(cell, results) for cell in left)
        seconds += len(gates) * self.plan.expected.warm_s
        return time.monotonic() + seconds <= self.ends

    def _left(self, done: Collection[str]) -> list[Cell]:
        """The next cell and those behind it that it is matched with."""
        for pair in self._pairs:
            if left := [cell for cell in pair if cell.id not in done]:
                return left
        return []

    def _seconds(self, cell: Cell, results: Mapping[str, Result]) -> float:
        """What a cell takes: the longest of its arm's latest, else what the plan expects."""
        seen = sorted(
            (result.time, sum(result.timing.values()))
            for name, result in results.items()
            if self._tp.get(name) == cell.tp and result.timing.get("start_s")
        )[-_LATEST:]
        return max((seconds for _, seconds in seen), default=self.plan.expected.cell_s)
