"""Which connection fetches which range, and in what order."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kvreg.transfer.blob import Blob
from kvreg.transfer.ranges import RangeSet


@dataclass(frozen=True)
class RangePolicy:
    """How blobs are cut into requests.

    One connection seldom has all of a host's bandwidth, and more than a few bring no more. A blob
    up to `least` bytes is one request; of a larger one the last `tail` bytes come first: enough
    for the directory and the metadata of an archive with thousands of members. A request is for
    a part that is large enough for its round trip not to be felt, at most `most`, and small enough
    that no connection is left alone with much at the end: of `parts` a connection.
    """

    connections: int = 4
    least: int = 4 << 20
    most: int = 32 << 20
    tail: int = 1 << 20
    parts: int = 4

    def part(self, size: int) -> int:
        """Bytes of one request for a blob of a size."""
        even = -(-size // (self.connections * self.parts))
        return max(self.least, min(even, self.most))


DEFAULT_RANGES = RangePolicy()


@dataclass
class Segment:
    """A range that one connection fetches: `position` moves on, `end` may."""

    blob: Blob
    position: int
    end: int


class Schedule:
    """The ranges of several blobs that nobody has fetched or begun to fetch.

    Archives are read from their ends, so the end of each blob comes first; then what a reader
    waits for; then everything in order, so that what is there grows from the beginning and can be
    hashed and unpacked meanwhile.
    """

    def __init__(self, blobs: Sequence[Blob], policy: RangePolicy) -> None:
        self._lock = threading.Lock()
        self._todo = {id(blob): blob.missing() for blob in blobs}
        self._blobs = list(blobs)
        self._policy = policy
        self._urgent: deque[tuple[Blob, int, int]] = deque(
            (blob, blob.size - policy.tail, blob.size) for blob in blobs if blob.size > policy.least
        )

    def take(self) -> Segment | None:
        """What to fetch next; None when everything is there or on its way."""
        with self._lock:
            while self._urgent:
                blob, start, end = self._urgent[0]
                found = self._take(blob, start, end, end - start)
                if found is not None:
                    return found
                self._urgent.popleft()
            part = self._policy.part
            for blob in self._blobs:
                if (found := self._take(blob, 0, blob.size, part(blob.size))) is not None:
                    return found
        return None

    def want(self, blob: Blob, start: int, end: int) -> None:
        """Fetch a range before the others, unless it is on its way."""
        with self._lock:
            self._urgent.append((blob, start, end))

    def take_all(self, segment: Segment) -> None:
        """Give a segment everything of its blob that nobody has begun to fetch."""
        with self._lock:
            self._todo[id(segment.blob)] = RangeSet()
            segment.end = segment.blob.size

    def _take(self, blob: Blob, start: int, end: int, most: int) -> Segment | None:
        todo = self._todo[id(blob)]
        # What is in both: what remains of the range without what is absent from the list.
        absent = RangeSet(todo.missing(start, end))
        for low, high in absent.missing(start, end):
            stop = min(high, low + most)
            todo.remove(low, stop)
            return Segment(blob, low, stop)
        return None
