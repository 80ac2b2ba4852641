"""Sets of byte ranges."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class RangeSet:
    """Byte positions as sorted, disjoint, non-adjacent half-open ranges.

    >>> held = RangeSet([(0, 4), (8, 12)])
    >>> held.add(2, 9)
    4
    >>> list(held), held.size
    ([(0, 12)], 12)
    >>> held.remove(3, 5)
    2
    >>> list(held.missing(0, 20))
    [(3, 5), (12, 20)]
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.size = 0
        for start, end in ranges:
            self.add(start, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def __bool__(self) -> bool:
        return bool(self._starts)

    def add(self, start: int, end: int) -> int:
        """Put a range in; how many positions are new."""
        if start >= end:
            return 0
        # Everything that the range overlaps or touches becomes one with it.
        low, high = bisect_left(self._ends, start), bisect_right(self._starts, end)
        covered = self._span(low, high)
        if low < high:
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        self._starts[low:high], self._ends[low:high] = [start], [end]
        added = end - start - covered
        self.size += added
        return added

    def remove(self, start: int, end: int) -> int:
        """Take a range out; how many positions were there."""
        if start >= end:
            return 0
        low, high = bisect_right(self._ends, start), bisect_left(self._starts, end)
        if low >= high:
            return 0
        covered = self._span(low, high)
        first, last = self._starts[low], self._ends[high - 1]
        kept = [(a, b) for a, b in ((first, start), (end, last)) if a < b]
        self._starts[low:high] = [a for a, _ in kept]
        self._ends[low:high] = [b for _, b in kept]
        removed = covered - sum(b - a for a, b in kept)
        self.size -= removed
        return removed

    def run_end(self, start: int) -> int:
        """Where the run of positions that begins with `start` ends; `start` if it is not in."""
        index = bisect_right(self._starts, start) - 1
        return max(start, self._ends[index]) if index >= 0 else start

    def contains(self, start: int, end: int) -> bool:
        """Whether the whole range is in."""
        return start >= end or self.run_end(start) >= end

    def missing(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The parts of a range that are not in."""
        while start < end:
            start = self.run_end(start)
            index = bisect_left(self._starts, start)
            stop = min(end, self._starts[index]) if index < len(self._starts) else end
            if start < stop:
                yield start, stop
            start = stop

    def _span(self, low: int, high: int) -> int:
        return sum(self._ends[low:high]) - sum(self._starts[low:high])
