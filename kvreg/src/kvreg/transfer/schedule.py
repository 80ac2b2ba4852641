"""Which connection fetches which range, and in what order."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kvreg.transfer.blob import Blob
from kvreg.transfer.ranges import RangeSet

LEAST_RANGE = 4 << 20
"""A blob up to this size is fetched by one request."""
_MOST_RANGE = 32 << 20
# Enough for the directory and the metadata of an archive with thousands of members.
_TAIL = 1 << 20
_PARTS = 4


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
    hashed and unpacked meanwhile. A request is for a part of a blob that is large enough not to
    be felt and small enough that no connection is left alone with much at the end.
    """

    def __init__(self, blobs: Sequence[Blob], connections: int) -> None:
        self._lock = threading.Lock()
        self._todo = {id(blob): blob.missing() for blob in blobs}
        self._blobs = list(blobs)
        self._connections = connections
        self._urgent: deque[tuple[Blob, int, int]] = deque(
            (blob, blob.size - _TAIL, blob.size) for blob in blobs if blob.size > LEAST_RANGE
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
            for blob in self._blobs:
                if (found := self._take(blob, 0, blob.size, self._part(blob))) is not None:
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

    def _part(self, blob: Blob) -> int:
        even = -(-blob.size // (self._connections * _PARTS))
        return max(LEAST_RANGE, min(even, _MOST_RANGE))

    def _take(self, blob: Blob, start: int, end: int, most: int) -> Segment | None:
        todo = self._todo[id(blob)]
        # What is in both: what remains of the range without what is absent from the list.
        absent = RangeSet(todo.missing(start, end))
        for low, high in absent.missing(start, end):
            stop = min(high, low + most)
            todo.remove(low, stop)
            return Segment(blob, low, stop)
        return None
