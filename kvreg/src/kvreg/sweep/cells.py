"""Cells and the order in which they run.

A cell is one measurement; a shard is all cells of one (model, workload, repetition). Order: model
by model, so that a session needs few downloads and warm caches; within a model repetition by
repetition; within a shard the concurrencies in a seeded order, and at each concurrency the
tensor-parallel arms side by side in a seeded order, so that drift of the machine hits all arms.

The seeded order is by SHA-256, not by a random generator: it is the same in every language and
version.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Cell:
    """One measurement: `concurrency` requests in flight on `tp` GPUs, for the `repetition`-th time.

    `input_tokens` is None where prompts are texts, whose tokens the server counts. Cells with the
    same `server` run inside one server process, all others in a fresh one.
    """

    id: str
    model: str
    workload: str
    input_tokens: int | None
    output_tokens: int
    concurrency: int
    tp: int
    repetition: int
    shard: str
    server: str

    @property
    def group(self) -> tuple[str, str, int]:
        """What the number of requests is chosen for: both arms and all repetitions share it."""
        return (self.model, self.workload, self.concurrency)


def cell_id(model: str, workload: str, concurrency: int, tp: int, repetition: int) -> str:
    """The cell's name, also that of its directory.

    >>> cell_id("Phi-4-mini-instruct", "short", 16, 2, 1)
    'Phi-4-mini-instruct.short.c16.tp2.r1'
    """
    return f"{model}.{workload}.c{concurrency}.tp{tp}.r{repetition}"


def shuffled(items: Iterable[Item], seed: int, *labels: object) -> list[Item]:
    """`items` in the order of SHA-256 over seed, labels and item."""

    def place(item: Item) -> bytes:
        text = "\x1f".join(map(str, (seed, *labels, item)))
        return hashlib.sha256(text.encode()).digest()

    return sorted(items, key=place)


def shards_of(cells: Sequence[Cell]) -> tuple[tuple[str, tuple[Cell, ...]], ...]:
    """Cells by shard, shards and cells in run order."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.shard, []).append(cell)
    return tuple((shard, tuple(items)) for shard, items in found.items())


def servers_of(cells: Sequence[Cell]) -> Iterator[tuple[Cell, ...]]:
    """Runs of cells that follow each other in one server."""
    run: list[Cell] = []
    for cell in cells:
        if run and run[-1].server != cell.server:
            yield tuple(run)
            run = []
        run.append(cell)
    if run:
        yield tuple(run)
