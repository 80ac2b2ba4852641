"""Bytes on their way: streams that verify themselves, and files whose digest is known.

Nothing here holds more than a chunk in memory.
"""

import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from kvreg.cores import usable_cores
from kvreg.errors import VerificationError
from kvreg.model.digest import sha256_file
from kvreg.model.oci import Descriptor

CHUNK_BYTES = 1 << 19
MEDIA_TYPE_OCTETS = "application/octet-stream"

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

    def descriptor(
        self, media_type: str = MEDIA_TYPE_OCTETS, annotations: Mapping[str, str] | None = None
    ) -> Descriptor:
        """The file as a blob."""
        return Descriptor(media_type, self.digest, self.size, dict(annotations or {}))


BlobSource = Path | HashedFile | bytes


def hash_file(path: Path, progress: Progress | None = None) -> HashedFile:
    """Hash a file; `VerificationError` when something writes to it meanwhile."""
    before = file_state(path.stat())
    digest = sha256_file(path, progress)
    found = path.stat()
    if file_state(found) != before:
        raise VerificationError(
            f"{path} changed while it was hashed",
            remedy="make sure that nothing writes to the file, and try again",
        )
    return HashedFile(path, digest, found.st_size, before)


def file_state(found: os.stat_result) -> tuple[int, ...]:
    """What no writer leaves as it was, within the resolution of the file system's clock."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class Sha256:
    """A digest that is computed beside the transfer of the bytes, in the order of `update`.

    hashlib lets other threads run while it works, so a large blob is hashed in a thread of its own
    while this one moves the next chunk; at most `_AHEAD` chunks wait for it. That is so while there
    is a core for it: where so many blobs are under way at once that their transfers keep all of
    them busy, passing chunks on would cost more than it brings. Use as a context manager, or close
    it. `size` is how many bytes are expected: a small blob is not worth a thread.
    """

    _lock: ClassVar = threading.Lock()
    _under_way: ClassVar[set["Sha256"]] = set()

    def __init__(self, size: int) -> None:
        self._state = hashlib.sha256()
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[None]] = deque()
        if size >= _WORTH_A_THREAD:
            # Its thread begins with the first chunk that it gets.
            self._pool = ThreadPoolExecutor(1, "sha256")
            self._at_once = usable_cores() // 2
            with self._lock:
                self._under_way.add(self)

    def __enter__(self) -> "Sha256":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            with self._lock:
                self._under_way.discard(self)

    def update(self, data: bytes | memoryview) -> None:
        """Add bytes, which must not change afterwards."""
        if self._pool is not None and len(self._under_way) <= self._at_once:
            if len(self._waiting) >= _AHEAD:
                self._waiting.popleft().result()
            self._waiting.append(self._pool.submit(self._state.update, data))
            return
        self._settle()
        self._state.update(data)

    def _settle(self) -> None:
        while self._waiting:
            self._waiting.popleft().result()

    def digest(self) -> str:
        """``sha256:<hex>`` of everything so far."""
        self._settle()
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
