"""Files of a staged wheel, written as pip would write them and hashed on the way."""

import hashlib
import os
import queue
import threading
from collections.abc import Callable

from kvreg.wheel.plan import Placement
from kvreg.wheel.record import RecordRow
from kvreg.wheel.scripts import rewritten

# Chunks that wait behind the inflating of one large member: what it can hold of memory.
_BEHIND = 16


class Sink:
    """Hashes and writes a large member, chunk by chunk.

    After `close`: `found`, the digest of what came; of a script, whose first line is made to name
    `interpreter`, also `written` and `size`, the digest and size of what was written.
    """

    def __init__(self, site: str, placement: Placement, mask: int, interpreter: str) -> None:
        self._interpreter = interpreter if placement.is_script else None
        self._state = hashlib.new(algorithm(placement.member.row))
        self._changed = hashlib.sha256() if placement.is_script else None
        self.size = 0
        self._handle = create(site, placement, mask)

    def put(self, chunk: bytes) -> None:
        """Take the next bytes."""
        self._state.update(chunk)
        if self._changed is not None:
            if self._interpreter is not None:
                # The line to change is in the first chunk, if anywhere.
                chunk, self._interpreter = rewritten(chunk, self._interpreter), None
            self._changed.update(chunk)
        write(self._handle, chunk)
        self.size += len(chunk)

    def close(self) -> None:
        """Nothing more will come."""
        os.close(self._handle)
        self.found = self._state.digest()
        self.written = self._changed.digest() if self._changed is not None else None


class Behind:
    """Calls a function with chunks, in order and a few chunks behind, in a thread of its own."""

    def __init__(self, take: Callable[[bytes], object]) -> None:
        self._take = take
        self._error: BaseException | None = None
        self._queue: queue.Queue[bytes | None] = queue.Queue(_BEHIND)
        self._thread = threading.Thread(target=self._run, name="kvreg-write", daemon=True)
        self._thread.start()

    def put(self, chunk: bytes) -> None:
        """Take the next bytes; waits when the thread is far behind, raises what it met."""
        self._queue.put(chunk)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Wait until every chunk is taken; raises what the thread met."""
        self._queue.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (chunk := self._queue.get()) is not None:
            # After an error it goes on emptying the queue, so that nobody waits for room in it.
            if self._error is None:
                try:
                    self._take(chunk)
                except BaseException as error:
                    self._error = error


def create(site: str, placement: Placement, mask: int) -> int:
    """A handle of the new file of a member below `site`; `mask` is the process's umask."""
    path = f"{site}/{placement.path}"
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    if _is_executable(placement):
        os.fchmod(handle, mode_of(placement, mask))
    return handle


def mode_of(placement: Placement, mask: int) -> int:
    """The mode of a member's file."""
    return (0o777 & ~mask) | 0o111 if _is_executable(placement) else 0o666 & ~mask


def write(handle: int, data: bytes) -> None:
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def algorithm(row: RecordRow) -> str:
    """The hash that a member's row names."""
    assert row.algorithm is not None, "a member without a hash is refused before"
    return row.algorithm


def _is_executable(placement: Placement) -> bool:
    return placement.is_script or placement.member.executable
