"""A blob that is being received: read by some threads while others still write it."""

import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from kvreg.errors import VerificationError
from kvreg.model.oci import Descriptor
from kvreg.transfer.journal import Journal, crc32
from kvreg.transfer.ranges import RangeSet

Progress = Callable[[int], object]

# A journal line for so many bytes: what a kill can cost each connection.
_JOURNALED = 1 << 20
# Readers are woken for so many bytes.
_WRITTEN = 1 << 18
_READ_AHEAD = 1 << 16


class Cancelled(Exception):
    """The transfer was given up: by an error, which is told elsewhere, or by the caller."""


class Arrivals:
    """What the threads of one transfer share: a lock to wait on, and the first error."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.error: BaseException | None = None
        self._writing = 0

    def fail(self, error: BaseException) -> None:
        """End the transfer: the first error is what every reader gets to see."""
        with self.changed:
            if self.error is None:
                self.error = error
            self.changed.notify_all()

    def cancel(self) -> None:
        """End the transfer; when this returns, no thread writes any more."""
        self.fail(Cancelled())
        with self.changed:
            self.changed.wait_for(lambda: not self._writing)

    def check(self) -> None:
        """Raise the error that ended the transfer, if one did."""
        if self.error is not None:
            raise self.error

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold off `cancel` for as long as something is written; not after it."""
        with self.changed:
            if self.error is not None:
                raise Cancelled
            self._writing += 1
        try:
            yield
        finally:
            with self.changed:
                self._writing -= 1
                self.changed.notify_all()


class Blob:
    """One blob's file, and which of its bytes are there.

    `path` is the file, whose bytes `held` are there already. With a `journal` it is a partial one
    that takes bytes with `put` and is to be called `final`; without, all of it is there, and `kept`
    says that an earlier transfer left it. `resumed` says that some bytes were there already.
    """

    def __init__(
        self,
        descriptor: Descriptor,
        path: Path,
        arrivals: Arrivals,
        held: RangeSet,
        *,
        final: Path,
        kept: bool = False,
        journal: Journal | None = None,
        progress: Progress = lambda count: None,
        wanted: Callable[["Blob", int, int], object] = lambda blob, start, end: None,
    ) -> None:
        self.descriptor = descriptor
        self.path = path
        self.final = final
        self.kept = kept
        self.resumed = bool(held)
        self.received = 0
        self._arrivals = arrivals
        self._held = held
        self._journal = journal
        self._progress = progress
        self._wanted = wanted
        # Never closed by hand: a thread that is stuck in a read may still own it.
        self._file: BinaryIO = path.open("rb" if journal is None else "r+b", buffering=0)
        self._handle = self._file.fileno()

    @property
    def size(self) -> int:
        """Bytes of the whole blob."""
        return self.descriptor.size

    @property
    def partial(self) -> bool:
        """Whether the file is one that is being received."""
        return self._journal is not None

    def missing(self) -> RangeSet:
        """What is not there."""
        with self._arrivals.changed:
            return RangeSet(self._held.missing(0, self.size))

    def has(self, start: int, end: int) -> bool:
        """Whether a range is there."""
        with self._arrivals.changed:
            return self._held.contains(start, end)

    @property
    def changed(self) -> threading.Condition:
        """Notified when more is there, or nothing more will be."""
        return self._arrivals.changed

    def check(self) -> None:
        """Raise the error that ended the transfer, if one did."""
        self._arrivals.check()

    def abort(self) -> None:
        """End the transfer."""
        self._arrivals.fail(Cancelled())

    def run_end(self, start: int) -> int:
        """Up to where everything from `start` on is there."""
        with self._arrivals.changed:
            return self._held.run_end(start)

    def wait(self, start: int, end: int) -> int:
        """Wait for a range's first bytes; where the bytes that are there then end, at most `end`.

        Raises the error that ended the transfer.
        """
        with self._arrivals.changed:
            while (there := self._held.run_end(start)) <= start < end:
                self._arrivals.check()
                self._arrivals.changed.wait()
            self._arrivals.check()
            return min(there, end)

    def read(self, start: int, end: int) -> bytes:
        """The bytes of a range, as soon as they are there."""
        parts = []
        while start < end:
            part = self.read_some(start, end)
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_some(self, start: int, end: int) -> bytes:
        """At least one byte of a range, as soon as some are there."""
        there = self.wait(start, end)
        data = os.pread(self._handle, there - start, start)
        if not data and start < end:
            raise VerificationError(f"{self.path} became shorter while it was read")
        return data

    def reader(self) -> io.BufferedReader:
        """The blob as a file; what is read and not there is fetched before the rest."""
        return io.BufferedReader(_Reader(self), _READ_AHEAD)

    def want(self, start: int, end: int) -> None:
        """Say that a range is needed before the others."""
        if not self.has(start, end):
            self._wanted(self, start, end)

    def put(self, start: int, data: bytes) -> None:
        """Write bytes that have arrived, as far as they are not there already.

        Raises `Cancelled` when the transfer has ended.
        """
        end = min(start + len(data), self.size)
        with self._arrivals.writing():
            for low, high in self._absent(start, end):
                view = memoryview(data)[low - start : high - start]
                position = low
                while view:
                    count = os.pwrite(self._handle, view, position)
                    view, position = view[count:], position + count
                with self._arrivals.changed:
                    added = self._held.add(low, high)
                    self.received += added
                    self._progress(added)

    def _absent(self, start: int, end: int) -> list[tuple[int, int]]:
        with self._arrivals.changed:
            return list(self._held.missing(start, end))

    def close(self) -> None:
        """Close the journal. Only when no thread writes any more."""
        if self._journal is not None:
            self._journal.close()


class Inflow:
    """The bytes of one connection on their way into a blob, with their part of the journal.

    Small pieces, as TLS brings them, are written together.
    """

    def __init__(self, blob: Blob, position: int) -> None:
        assert blob._journal is not None
        self._blob = blob
        self._journal = blob._journal
        self._pieces: list[bytes] = []
        self._held = 0
        # Up to where bytes are listed in the journal, written, and received.
        self._listed = self._written = self.position = position
        self._checksum = 0

    def put(self, data: bytes) -> None:
        """Take the next bytes."""
        self._pieces.append(data)
        self._held += len(data)
        self.position += len(data)
        if self._held >= _WRITTEN:
            self._write()
            if self.position - self._listed >= _JOURNALED:
                self._list()

    def flush(self) -> None:
        """Write what has come, and list it in the journal."""
        self._write()
        self._list()

    def _write(self) -> None:
        if self._pieces:
            data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces, self._held = [], 0
            self._blob.put(self._written, data)
            self._checksum = crc32(data, self._checksum)
            self._written += len(data)

    def _list(self) -> None:
        if self._written > self._listed:
            self._journal.add(self._listed, self._written, self._checksum)
        self._listed, self._checksum = self._written, 0


class _Reader(io.RawIOBase):
    """`Blob.reader` without a buffer."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._blob.size}[whence]
        if base + offset < 0:
            raise OSError("a position before the beginning")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: "memoryview | bytearray") -> int:  # type: ignore[override]
        end = min(self._position + len(buffer), self._blob.size)
        if self._position >= end:
            return 0
        self._blob.want(self._position, end)
        data = self._blob.read_some(self._position, end)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
