"""The journal of a partial blob: which ranges have arrived, with a checksum of each.

A blob has one sha256, which can be compared when all of it is there and not before; so a range
cannot be *verified* while others are missing. What the journal can promise is that the bytes on
the disk are still those that arrived: every range has its CRC-32 from the moment when it was
received, and a range whose bytes on the disk have another one (torn by a crash of the machine,
damaged since) is fetched again. Whether the whole is right is decided by the sha256 alone, each
time, over every byte.

The file holds a line for the blob and one for each range, appended in one write after the bytes
themselves; a process that dies leaves at most a range that is written and not listed, or a last
line that is torn, and both are simply not there for the next one::

    kvreg-partial 1 sha256:<hex> <size>
    <start> <end> <crc32, 8 hex digits>
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from kvreg.model.oci import Descriptor
from kvreg.transfer.ranges import RangeSet

_LINE = re.compile(rb"(\d{1,18}) (\d{1,18}) ([0-9a-f]{8})\n")
_CHUNK = 1 << 20
_LONGEST_JOURNAL = 64 << 20


try:
    # The same number, five times as fast.
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32


def journal_path(partial: Path) -> Path:
    """Where the journal of a partial blob is."""
    return partial.with_name(partial.name + ".journal")


class Journal:
    """A journal that `recover` has left, to add ranges to. Safe to use from several threads."""

    def __init__(self, partial: Path) -> None:
        self._file = journal_path(partial).open("ab", buffering=0)

    def add(self, start: int, end: int, checksum: int) -> None:
        """Say that a range has been written."""
        # One write to a file that is open for appending: lines of two threads do not mix.
        self._file.write(b"%d %d %08x\n" % (start, end, checksum))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def recover(partial: Path, descriptor: Descriptor) -> RangeSet:
    """The ranges of a partial blob whose bytes are still those that arrived.

    The journal is written again with them alone. One that is of another blob, or not a journal at
    all, counts for nothing.
    """
    held = RangeSet()
    lines = [_header(descriptor)]
    try:
        with partial.open("rb", buffering=0) as file:
            for start, end, checksum in _entries(journal_path(partial), descriptor):
                if _checksum(file.fileno(), start, end) == checksum:
                    held.add(start, end)
                    lines.append(b"%d %d %08x\n" % (start, end, checksum))
    except FileNotFoundError:
        pass
    journal = journal_path(partial)
    temporary = journal.with_name(journal.name + ".new")
    temporary.write_bytes(b"".join(lines))
    temporary.replace(journal)
    return held


def discard(partial: Path) -> None:
    """Remove a partial blob and its journal."""
    # The journal first: without it, nothing of the partial blob counts.
    journal_path(partial).unlink(missing_ok=True)
    partial.unlink(missing_ok=True)


def _header(descriptor: Descriptor) -> bytes:
    return f"kvreg-partial 1 {descriptor.digest} {descriptor.size}\n".encode()


def _entries(path: Path, descriptor: Descriptor) -> Iterator[tuple[int, int, int]]:
    with path.open("rb") as file:
        lines = file.read(_LONGEST_JOURNAL).splitlines(keepends=True)
    if not lines or lines[0] != _header(descriptor):
        return
    for line in lines[1:]:
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        start, end = int(match[1]), int(match[2])
        if start < end <= descriptor.size:
            yield start, end, int(match[3], 16)


def _checksum(handle: int, start: int, end: int) -> int | None:
    """The CRC-32 of a range of a file; None when the file is shorter."""
    state = 0
    while start < end:
        chunk = os.pread(handle, min(_CHUNK, end - start), start)
        if not chunk:
            return None
        state = crc32(chunk, state)
        start += len(chunk)
    return state
