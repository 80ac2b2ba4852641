"""Unpacks planned members in parallel, as soon as their bytes are there, and hashes all of them.

Members of more than a megabyte come first, the largest first, so that no core is left alone with
one at the end. A chunk is hashed and written by the thread that has inflated it, while it is in
that core's cache; only a member that is larger than a worker's share of what is left is hashed and
written in a thread of its own, behind the inflating, so that no core waits for it at the end.

The others go in batches of neighbours, which are read at once. What they cost is mostly the
interpreter's work, and that runs in one thread at a time. So they are one worker's, from when they
are the most that is left; others help with them when there is nothing else.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from zipfile import ZIP_DEFLATED, ZIP_STORED

from kvreg.errors import Problem
from kvreg.wheel import localheader
from kvreg.wheel.content import Content
from kvreg.wheel.inflate import DamagedError, Inflate
from kvreg.wheel.output import Behind, Sink, algorithm, create, mode_of, write
from kvreg.wheel.plan import Placement, WheelPlan
from kvreg.wheel.record import RecordRow
from kvreg.wheel.reuse import EarlierFiles
from kvreg.wheel.scripts import rewritten

_LARGE = 1 << 20
_PIECE = 1 << 18
# What making a file costs, in bytes that could be unpacked meanwhile.
_FILE = 1 << 16

Result = RecordRow | Problem


@dataclass(frozen=True)
class Target:
    """How files are written; `mask` is the process's umask."""

    interpreter: str
    mask: int
    inflate: Inflate
    earlier: EarlierFiles = field(default_factory=EarlierFiles)


@dataclass(frozen=True)
class Batch:
    """Members that one worker unpacks into the directory `site` together; a large one is alone.

    Paths are text here: there are thousands of them.
    """

    plan: WheelPlan
    site: str
    placements: tuple[Placement, ...]

    @property
    def large(self) -> bool:
        """Whether it is one large member."""
        return self.placements[0].member.size > _LARGE

    @property
    def start(self) -> int:
        """Where the first member's header is."""
        return self.placements[0].member.start

    @property
    def cost(self) -> int:
        """How much work it is, in bytes."""
        return sum(placement.member.size + _FILE for placement in self.placements)

    @property
    def needed(self) -> int:
        """Up to where bytes must be there before it is worth to begin."""
        if self.large:
            return self.start + 1
        return self.placements[-1].member.end


def batches(plan: WheelPlan, site: str, placements: Sequence[Placement]) -> Iterator[Batch]:
    """Group members: large ones alone, neighbours up to a megabyte, packed or not, together."""
    group: list[Placement] = []
    size = 0
    for placement in sorted(placements, key=lambda placement: placement.member.start):
        member = placement.member
        if member.size > _LARGE:
            yield Batch(plan, site, (placement,))
            continue
        span = max(member.size, member.end - member.start)
        if group and (size + span > _LARGE or member.end - group[0].member.start > _LARGE):
            yield Batch(plan, site, tuple(group))
            group, size = [], 0
        group.append(placement)
        size += span
    if group:
        yield Batch(plan, site, tuple(group))


class Unpacker:
    """Workers that unpack batches. `reused` counts bytes that needed no unpacking."""

    def __init__(self, work: Sequence[Batch], target: Target, progress: Callable[[int], object]):
        self._large = sorted((batch for batch in work if batch.large), key=lambda b: -b.cost)
        self._small = [batch for batch in work if not batch.large]
        self._left = sum(batch.cost for batch in work)
        self._small_cost = sum(batch.cost for batch in self._small)
        self._at_small = 0
        self._contents = [batch.plan.content for batch in work]
        self._target = target
        self._progress = progress
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._results: dict[tuple[int, str], Result] = {}
        self._workers = 1
        self.reused = 0

    def run(self, workers: int) -> Mapping[tuple[int, str], Result]:
        """Unpack everything; a row or a problem for each plan (by `id`) and path.

        Raises what ended the transfer, or `OSError`; no worker is left when it does.
        """
        self._workers = workers = max(1, workers)
        threads = [
            threading.Thread(target=self._work, name=f"kvreg-unpack-{number}", daemon=True)
            for number in range(workers)
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException as error:
            # Ctrl-C: nobody may write any more when the directory is removed.
            self._fail(error)
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            raise
        if self._error is not None:
            raise self._error
        return self._results

    def _work(self) -> None:
        at_small = False
        try:
            while (batch := self._take(at_small)) is not None:
                at_small = not batch.large
                if batch.large:
                    self._unpack_large(batch)
                else:
                    self._unpack_small(batch)
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._error is None:
                self._error = error
        for content in self._contents:
            content.abort()

    def _take(self, at_small: bool) -> Batch | None:
        """The best batch whose bytes are there; waits for bytes; None when nothing is left.

        `at_small` says whether the worker's last batch was of small members.
        """
        while self._error is None:
            with self._lock:
                remaining = self._in_order(at_small)
                if not remaining:
                    return None
                for batch in remaining:
                    if batch.plan.content.has(batch.start, batch.needed):
                        self._remove(batch, at_small)
                        return batch
            content = remaining[0].plan.content
            with content.changed:
                ready = any(item.plan.content.has(item.start, item.needed) for item in remaining)
                if not ready and self._error is None:
                    content.check()
                    content.changed.wait()
        return None

    def _in_order(self, at_small: bool) -> list[Batch]:
        """What is left, the best for a worker first."""
        nobody_else = self._at_small == int(at_small)
        most = self._large[0].cost if self._large else 0
        if nobody_else and (at_small or self._small_cost > most):
            return [*self._small, *self._large]
        return [*self._large, *self._small]

    def _remove(self, batch: Batch, at_small: bool) -> None:
        self._at_small -= at_small
        self._left -= batch.cost
        if batch.large:
            self._large.remove(batch)
        else:
            self._small.remove(batch)
            self._small_cost -= batch.cost
            self._at_small += 1

    def _done(self, batch: Batch, placement: Placement, result: Result) -> None:
        with self._lock:
            self._results[id(batch.plan), placement.path] = result

    def _report(self, count: int) -> None:
        with self._lock:
            self._progress(count)

    def _reuse(self, batch: Batch, placement: Placement) -> RecordRow | None:
        """The row of a member that an earlier runtime has already."""
        member = placement.member
        if placement.is_script:
            return None
        mode = mode_of(placement, self._target.mask)
        path = f"{batch.site}/{placement.path}"
        if not self._target.earlier.place(member.row, member.size, path, mode):
            return None
        with self._lock:
            self.reused += member.size
        return _row(placement)

    def _unpack_small(self, batch: Batch) -> None:
        data = memoryview(batch.plan.content.read(batch.start, batch.needed))
        total = 0
        for placement in batch.placements:
            member = placement.member
            result: Result | None = self._reuse(batch, placement)
            if result is None:
                raw = data[member.start - batch.start : member.end - batch.start]
                try:
                    result = self._write_small(batch, placement, _packed(bytes(raw), placement))
                except DamagedError as error:
                    result = Problem(member.name, f"cannot be read: it {error}")
                except _HeaderError as error:
                    result = error.problem
            self._done(batch, placement, result)
            total += member.size
        self._report(total)

    def _write_small(self, batch: Batch, placement: Placement, packed: bytes) -> Result:
        member = placement.member
        if member.info.compress_type == ZIP_STORED:
            content = packed
        else:
            content = self._target.inflate.whole(packed, member.size)
        state = hashlib.new(algorithm(member.row), content)
        if state.digest() != member.row.digest:
            return _mismatch(member.name, member.row, state.digest())
        row = _row(placement)
        if placement.is_script:
            content = rewritten(content, self._target.interpreter)
            row = RecordRow(
                placement.path, "sha256", hashlib.sha256(content).digest(), len(content)
            )
        handle = create(batch.site, placement, self._target.mask)
        try:
            write(handle, content)
        finally:
            os.close(handle)
        return row

    def _unpack_large(self, batch: Batch) -> None:
        (placement,) = batch.placements
        member = placement.member
        result: Result | None = self._reuse(batch, placement)
        if result is not None:
            self._report(member.size)
        else:
            try:
                result = self._write_large(batch, placement)
            except DamagedError as error:
                result = Problem(member.name, f"cannot be read: it {error}")
            except _HeaderError as error:
                result = error.problem
        self._done(batch, placement, result)

    def _write_large(self, batch: Batch, placement: Placement) -> Result:
        member, content = placement.member, batch.plan.content
        start = member.start
        head = content.read(start, start + localheader.SIZE)
        size = max(localheader.header_size(head), localheader.SIZE)
        head = content.read(start, min(start + size, member.end))
        start += _checked_header(head, placement, member.end - start)
        pieces = _pieces(content, start, start + member.info.compress_size)
        if member.info.compress_type == ZIP_DEFLATED:
            pieces = self._target.inflate.chunks(pieces, member.size)
        sink = Sink(batch.site, placement, self._target.mask, self._target.interpreter)
        # What this batch costs has been taken from what is left.
        share = (self._left + batch.cost) // self._workers
        behind = Behind(sink.put) if batch.cost > share else None
        put = behind.put if behind is not None else sink.put
        try:
            for piece in pieces:
                if self._error is not None:
                    raise _StoppedError
                put(piece)
                self._report(len(piece))
        finally:
            try:
                if behind is not None:
                    behind.close()
            finally:
                sink.close()
        if sink.found != member.row.digest:
            return _mismatch(member.name, member.row, sink.found)
        if sink.written is not None:
            return RecordRow(placement.path, "sha256", sink.written, sink.size)
        return _row(placement)


class _StoppedError(Exception):
    """Another worker has failed."""


class _HeaderError(Exception):
    """The local header of a member is wrong."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def _packed(raw: bytes, placement: Placement) -> bytes:
    """The packed bytes of a member from everything between its header and what follows it."""
    size = _checked_header(raw, placement, len(raw))
    return raw[size : size + placement.member.info.compress_size]


def _checked_header(raw: bytes, placement: Placement, room: int) -> int:
    """The size of a local header that is as it should be; else `_HeaderError`."""
    member = placement.member
    size = localheader.header_size(raw)
    if not size or size > len(raw) or size + member.info.compress_size > room:
        raise _HeaderError(Problem(member.name, "has no room in the archive, or no local header"))
    if (problem := localheader.header_problem(raw[:size], member.info)) is not None:
        raise _HeaderError(problem)
    return size


def _pieces(content: Content, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        piece = content.read_some(start, min(start + _PIECE, end))
        if not piece:
            raise DamagedError("ends with its archive")
        yield piece
        start += len(piece)


def _row(placement: Placement) -> RecordRow:
    """The row of a file that is as it is in the wheel."""
    row = placement.member.row
    return RecordRow(placement.path, row.algorithm, row.digest, placement.member.size)


def _mismatch(name: str, row: RecordRow, found: bytes) -> Problem:
    expected = row.digest.hex() if row.digest else ""
    what = "does not match RECORD"
    return Problem(name, what, f"{row.algorithm}={expected}", f"{row.algorithm}={found.hex()}")
