"""Blobs on their way out: bytes that can be sent again, hashed at the latest while they are sent.

Nothing here holds more than a chunk in memory.
"""

import io
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from kvreg.errors import VerificationError
from kvreg.model.oci import Descriptor
from registry.stream import (
    CHUNK_BYTES,
    BlobSource,
    HashedFile,
    Progress,
    Sha256,
    file_state,
    hash_file,
)


class Needless(Exception):
    """A blob that is being sent turned out to be there."""


class Hashing:
    """A file that is hashed in a thread of its own while it is sent: see `Upload`.

    Once the digest is known, `needed` is asked in that thread whether to go on. Use as a context
    manager; leaving it ends the thread.
    """

    def __init__(self, path: Path, needed: Callable[[HashedFile], bool]) -> None:
        self.path = path
        self._needed = needed
        self._left = False
        self._pool = ThreadPoolExecutor(1, "sha256")
        self._found = self._pool.submit(self._hash)

    def __enter__(self) -> "Hashing":
        return self

    def __exit__(self, *error: object) -> None:
        self._left = True
        self._pool.shutdown(wait=True)

    @property
    def hashed(self) -> HashedFile:
        """The file with its digest, as soon as it is known; `VerificationError` when something
        writes to it."""
        return self._found.result()[0]

    def file(self) -> HashedFile:
        """`hashed`; `Needless` when nobody needs it."""
        file, needed = self._found.result()
        if not needed:
            raise Needless
        return file

    def check(self) -> None:
        """`file`, if it is known by now."""
        if self._found.done():
            self.file()

    def _hash(self) -> tuple[HashedFile, bool]:
        file = hash_file(self.path, self._go_on)
        return file, self._needed(file)

    def _go_on(self, count: int) -> None:
        if self._left:
            raise Needless


class Upload:
    """A blob's bytes for sending: any window any number of times, hashed on the first pass.

    A `HashedFile` is not hashed again, and a `Hashing` is hashed elsewhere; that nothing wrote to
    the file meanwhile is checked at the end. Use as a context manager. `VerificationError` when the
    size is not the descriptor's, on entry or because the file changed; `Needless` from any method
    when that comes out while the file is hashed.
    """

    def __init__(
        self,
        source: BlobSource | Hashing,
        descriptor: Descriptor | None,
        progress: Progress | None = None,
    ) -> None:
        path = source.path if isinstance(source, HashedFile | Hashing) else source
        self._source = source
        self._path = None if isinstance(path, bytes) else path
        self._descriptor = descriptor
        self._progress = progress
        self._shown = 0
        self._read = 0
        self._stream: BinaryIO
        self._state: Sha256 | None = None
        self.name = "bytes" if self._path is None else str(self._path)
        self.title = f"/{descriptor.digest}" if descriptor else self.name
        self.size = 0

    def __enter__(self) -> "Upload":
        if isinstance(self._source, bytes):
            self._stream = io.BytesIO(self._source)
            self.size = len(self._source)
        else:
            assert self._path is not None
            self._stream = self._path.open("rb", buffering=0)
            self.size = os.fstat(self._stream.fileno()).st_size
        if self._descriptor is not None and self._descriptor.size != self.size:
            self._stream.close()
            raise self._changed(f"{self._descriptor.size} bytes", f"{self.size} bytes")
        hashed_here = isinstance(self._source, Path | bytes)
        self._state = Sha256(self.size) if hashed_here else None
        return self

    def __exit__(self, *error: object) -> None:
        if self._state is not None:
            self._state.close()
        self._stream.close()

    @property
    def digest(self) -> str:
        """What the blob's digest is to be; waits until it is known."""
        return self._descriptor.digest if self._descriptor else self._file().digest

    def window(self, start: int, end: int) -> "Window":
        """The bytes from `start` up to `end` as a request body."""
        return Window(self, start, end)

    def check(self) -> None:
        """Raise `VerificationError` unless everything was read and has the right digest."""
        if self._read < self.size:
            raise self._changed(f"{self.size} bytes", f"{self._read} bytes read")
        if self._state is not None:
            found = self._state.digest()
        else:
            file = self._file()
            found = file.digest
            if file_state(os.fstat(self._stream.fileno())) != file.state:
                raise self._changed("the file as it was hashed", "a file that changed since")
        if found != self.digest:
            raise self._changed(self.digest, found)

    def read_at(self, position: int, count: int) -> bytes:
        """Up to `count` bytes at `position`, hashed if they were not read before."""
        if isinstance(self._source, Hashing):
            self._source.check()
        self._stream.seek(position)
        data = self._stream.read(count)
        if not data and count:
            raise self._changed(f"{self.size} bytes", f"{position} bytes")
        # Windows are read in order, and again only after a fault: the hash takes each byte once.
        if position <= self._read < position + len(data):
            if self._state is not None:
                self._state.update(memoryview(data)[self._read - position :])
            self._read = position + len(data)
        if self._progress is not None:
            self._progress(position + len(data) - self._shown)
            self._shown = position + len(data)
        return data

    def _file(self) -> HashedFile:
        if isinstance(self._source, Hashing):
            return self._source.file()
        assert isinstance(self._source, HashedFile)
        return self._source

    def _changed(self, expected: str, found: str) -> VerificationError:
        return VerificationError(
            f"{self.name} is not the blob that its descriptor says",
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
