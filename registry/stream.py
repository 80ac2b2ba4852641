"""Bytes on their way: streams that verify themselves, and files that can be sent again.

Nothing here holds more than a chunk in memory.
"""

import hashlib
import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kvreg.errors import VerificationError
from kvreg.model.digest import sha256_file
from kvreg.model.oci import Descriptor

CHUNK_BYTES = 1 << 19

_WORTH_A_THREAD = 4 << 20
_AHEAD = 6

Progress = Callable[[int], object]
"""Called with counts of bytes as they pass; negative when bytes must be sent again."""


@dataclass(frozen=True)
class HashedFile:
    """A file that was hashed. As long as its `state` is what it was, so is its digest: it can be
    sent without being hashed again."""

    path: Path
    digest: str
    size: int
    state: tuple[int, ...]


BlobSource = Path | HashedFile | bytes


def hash_file(path: Path, progress: Progress | None = None) -> HashedFile:
    """Hash a file; `VerificationError` when something writes to it meanwhile."""
    before = _state(path.stat())
    digest = sha256_file(path, progress)
    found = path.stat()
    if _state(found) != before:
        raise VerificationError(
            f"{path} changed while it was hashed",
            remedy="make sure that nothing writes to the file, and try again",
        )
    return HashedFile(path, digest, found.st_size, before)


def _state(found: os.stat_result) -> tuple[int, ...]:
    """What no writer leaves as it was, within the resolution of the file system's clock."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class Sha256:
    """A digest that is computed beside the transfer of the bytes, in the order of `update`.

    hashlib lets other threads run while it works, so a large blob is hashed in a thread of its own
    while this one moves the next chunk; at most `_AHEAD` chunks wait for it. Use as a context
    manager. `size` is how many bytes are expected: a small blob is not worth a thread.
    """

    def __init__(self, size: int) -> None:
        self._state = hashlib.sha256()
        self._pool = ThreadPoolExecutor(1, "sha256") if size >= _WORTH_A_THREAD else None
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> "Sha256":
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def update(self, data: bytes | memoryview) -> None:
        """Add bytes, which must not change afterwards."""
        if self._pool is None:
            self._state.update(data)
            return
        if len(self._waiting) >= _AHEAD:
            self._waiting.popleft().result()
        self._waiting.append(self._pool.submit(self._state.update, data))

    def digest(self) -> str:
        """``sha256:<hex>`` of everything so far."""
        while self._waiting:
            self._waiting.popleft().result()
        return "sha256:" + self._state.hexdigest()


class Verified:
    """Chunks of a blob that are hashed as they pass, see `verified`. Iterated once."""

    def __init__(
        self,
        chunks: Iterable[bytes],
        descriptor: Descriptor,
        where: str,
        progress: Progress | None = None,
    ) -> None:
        self.descriptor = descriptor
        self._chunks = chunks
        self._where = where
        self._progress = progress

    def __iter__(self) -> Iterator[bytes]:
        descriptor, where = self.descriptor, self._where
        size = 0
        with Sha256(descriptor.size) as state:
            for chunk in self._chunks:
                size += len(chunk)
                if size > descriptor.size:
                    raise _wrong_size(descriptor, where, f"more than {descriptor.size} bytes")
                state.update(chunk)
                yield chunk
                if self._progress is not None:
                    self._progress(len(chunk))
            if size != descriptor.size:
                raise _wrong_size(descriptor, where, f"{size} bytes")
            found = state.digest()
        if found != descriptor.digest:
            raise VerificationError(
                f"blob of {where} is corrupt: its bytes do not have its digest",
                expected=descriptor.digest,
                found=found,
                remedy="fetch it from another store, or publish it again",
            )


def verified(
    chunks: Iterable[bytes], descriptor: Descriptor, where: str, progress: Progress | None = None
) -> Verified:
    """Pass `chunks` on and raise `VerificationError` unless they are the blob described.

    The error comes at the first byte too many, or at the end: whoever takes bytes from here must
    not use them for good before the iteration has ended by itself. Chunks that are verified as
    this blob already are not hashed twice.
    """
    if isinstance(chunks, Verified):
        same = chunks.descriptor
        if (same.digest, same.size) == (descriptor.digest, descriptor.size):
            return chunks
    return Verified(chunks, descriptor, where, progress)


def check_bytes(raw: bytes, digest: str, where: str) -> bytes:
    """`raw` again, or `VerificationError` when `digest` is not its digest."""
    found = "sha256:" + hashlib.sha256(raw).hexdigest()
    if found != digest:
        raise VerificationError(
            f"content of {where} is corrupt: its bytes do not have its digest",
            expected=digest,
            found=found,
        )
    return raw


def file_chunks(path: Path, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The bytes of a file."""
    with path.open("rb", buffering=0) as stream:
        while chunk := stream.read(size):
            yield chunk


def source_chunks(source: BlobSource) -> Iterator[bytes]:
    """The bytes of a file, or bytes."""
    if isinstance(source, bytes):
        return iter((source,))
    return file_chunks(source.path if isinstance(source, HashedFile) else source)


def counted(chunks: Iterable[bytes], progress: Progress | None) -> Iterator[bytes]:
    """Pass `chunks` on and count their bytes."""
    for chunk in chunks:
        yield chunk
        if progress is not None:
            progress(len(chunk))


def _wrong_size(descriptor: Descriptor, where: str, found: str) -> VerificationError:
    return VerificationError(
        f"blob {descriptor.digest} of {where} has the wrong size",
        expected=f"{descriptor.size} bytes",
        found=found,
    )


class Upload:
    """A blob's bytes for sending: any window any number of times, hashed on the first pass.

    A `HashedFile` is not hashed again; that nothing wrote to it is checked before and after. Use
    as a context manager. `VerificationError` when the size is not the descriptor's, on entry or
    because the file changed meanwhile.
    """

    def __init__(
        self, source: BlobSource, descriptor: Descriptor, progress: Progress | None = None
    ) -> None:
        self.descriptor = descriptor
        self.size = descriptor.size
        self._source = source
        self._known = source if isinstance(source, HashedFile) else None
        path = source.path if isinstance(source, HashedFile) else source
        self._path = None if isinstance(path, bytes) else path
        self._name = "bytes" if self._path is None else str(self._path)
        self._state = Sha256(descriptor.size if self._known is None else 0)
        self._hashed = 0
        self._progress = progress
        self._shown = 0
        self._stream: BinaryIO

    def __enter__(self) -> "Upload":
        if isinstance(self._source, bytes):
            self._stream = io.BytesIO(self._source)
            found = len(self._source)
        else:
            assert self._path is not None
            self._stream = self._path.open("rb", buffering=0)
            found = os.fstat(self._stream.fileno()).st_size
        if found != self.size:
            self._stream.close()
            raise self._changed(f"{self.size} bytes", f"{found} bytes")
        self._state.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._state.__exit__()
        self._stream.close()

    def window(self, start: int, end: int) -> "Window":
        """The bytes from `start` up to `end` as a request body."""
        return Window(self, start, end)

    def check(self) -> None:
        """Raise `VerificationError` unless everything was read and has the right digest."""
        if self._hashed < self.size:
            raise self._changed(f"{self.size} bytes", f"{self._hashed} bytes read")
        if self._known is not None:
            if _state(os.fstat(self._stream.fileno())) != self._known.state:
                raise self._changed("the file as it was hashed", "a file that changed since")
            found = self._known.digest
        else:
            found = self._state.digest()
        if found != self.descriptor.digest:
            raise self._changed(self.descriptor.digest, found)

    @property
    def complete(self) -> bool:
        """Whether every byte was read at least once."""
        return self._hashed == self.size

    def read_at(self, position: int, count: int) -> bytes:
        """Up to `count` bytes at `position`, hashed if they were not read before."""
        self._stream.seek(position)
        data = self._stream.read(count)
        if not data and count:
            raise self._changed(f"{self.size} bytes", f"{position} bytes")
        # Windows are read in order, and again only after a fault: the hash takes each byte once.
        if position <= self._hashed < position + len(data):
            if self._known is None:
                self._state.update(memoryview(data)[self._hashed - position :])
            self._hashed = position + len(data)
        if self._progress is not None:
            self._progress(position + len(data) - self._shown)
            self._shown = position + len(data)
        return data

    def _changed(self, expected: str, found: str) -> VerificationError:
        return VerificationError(
            f"{self._name} is not the blob that its descriptor says",
            expected=expected,
            found=found,
            remedy="make sure that nothing writes to the file while it is pushed, and try again",
        )


class Window:
    """A part of an `Upload` in the form that the HTTP library takes as a body."""

    def __init__(self, upload: Upload, start: int, end: int) -> None:
        self._upload = upload
        self._start = start
        self._end = end
        self._position = start

    def __len__(self) -> int:
        return self._end - self._start

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self.read(CHUNK_BYTES):
            yield chunk

    def read(self, count: int = -1) -> bytes:
        """Like a file's ``read``."""
        left = self._end - self._position
        count = left if count is None or count < 0 else min(count, left)
        if count == 0:
            return b""
        data = self._upload.read_at(self._position, count)
        self._position += len(data)
        return data

    def tell(self) -> int:
        """The position within the window."""
        return self._position - self._start

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Like a file's ``seek``, within the window."""
        base = {os.SEEK_SET: self._start, os.SEEK_CUR: self._position, os.SEEK_END: self._end}
        self._position = min(max(base[whence] + offset, self._start), self._end)
        return self.tell()

    def rewind(self) -> None:
        """Start again: a request that was answered 401 is sent once more with a token."""
        self._position = self._start
