"""How long a plan takes, and how it splits over sessions of a stated length.

A shard stays whole. ``--shard k/n`` is the k-th of n runs of neighbouring shards of about equal
expected time, so that a session needs few models and few caches.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvreg.errors import UsageError
from kvreg.sweep.cells import Cell, servers_of
from kvreg.sweep.plan import Plan


@dataclass(frozen=True)
class Part:
    """One of `of` sessions: its shards, cells and expected seconds."""

    number: int
    of: int
    shards: tuple[str, ...]
    cells: tuple[Cell, ...]
    seconds: float


@dataclass(frozen=True)
class Choice:
    """A ``--shard k/n`` option."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> "Choice":
        """Read ``k/n``; `UsageError` unless 1 <= k <= n.

        >>> Choice.parse("2/5")
        Choice(number=2, of=5)
        """
        match = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text)
        if match is None or int(match[1]) > int(match[2]):
            raise UsageError("this is no shard", expected="k/n with 1 <= k <= n", found=text)
        return cls(int(match[1]), int(match[2]))


def expected_seconds(plan: Plan, cells: Sequence[Cell]) -> float:
    """Wall-clock seconds of cells in one session with cold caches."""
    times = plan.expected
    servers = len(list(servers_of(cells)))
    caches = {
        (cell.model, cell.tp, repr(plan.settings(cell.model, cell.workload))) for cell in cells
    }
    per_server = times.start_s + times.stop_s + times.other_s
    return servers * per_server + len(cells) * times.measure_s + len(caches) * times.warm_s


def split(plan: Plan, count: int) -> list[Part]:
    """The plan in `count` parts, some of them empty when there are fewer shards.

    Parts depend on the plan alone, so that sessions on different machines agree about them.
    """
    shards = plan.shards()
    weights = [expected_seconds(plan, cells) for _, cells in shards]
    total = sum(weights)
    groups: list[list[tuple[str, tuple[Cell, ...]]]] = [[] for _ in range(count)]
    before = 0.0
    for shard, weight in zip(shards, weights, strict=True):
        middle = before + weight / 2
        groups[min(int(middle / total * count), count - 1)].append(shard)
        before += weight
    parts = []
    for number, group in enumerate(groups, start=1):
        cells = tuple(cell for _, members in group for cell in members)
        names = tuple(name for name, _ in group)
        parts.append(Part(number, count, names, cells, expected_seconds(plan, cells)))
    return parts


def sessions(plan: Plan, hours: float) -> list[Part]:
    """The smallest number of parts of which each is expected to fit into `hours`.

    Raises `UsageError` when a single shard does not.
    """
    limit = hours * 3600
    most = len(plan.shards())
    least = max(1, int(expected_seconds(plan, plan.cells()) / limit))
    for count in range(min(least, most), most + 1):
        parts = split(plan, count)
        if all(part.seconds <= limit for part in parts):
            return parts
    longest = max(expected_seconds(plan, cells) for _, cells in plan.shards())
    raise UsageError(
        "a shard does not fit into one session",
        expected=f"at most {hours:g} h",
        found=f"{longest / 3600:.1f} h",
        remedy="longer sessions; or let one stop in the middle and resume it",
    )
