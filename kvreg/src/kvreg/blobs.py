"""Verified blobs in the home: fetched once, resumed after an interruption, never half-trusted."""

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from kvreg.errors import NetworkError, VerificationError
from kvreg.home import Home
from kvreg.model.digest import parse_digest, sha256_file
from kvreg.model.oci import Descriptor
from kvreg.sources import Interrupted, Source

Progress = Callable[[int], object]

_CHUNK = 1 << 20
_FIRST_DELAY = 0.5
_LONGEST_DELAY = 15.0


@dataclass(frozen=True)
class BlobStore:
    """The blobs of a home. `stalls` is how often in a row a transfer may bring nothing new."""

    home: Home
    stalls: int = 5
    sleep: Callable[[float], None] = time.sleep

    def fetch(self, source: Source, descriptor: Descriptor, progress: Progress) -> Path:
        """The path of a file that holds exactly the blob; `progress` gets counts of bytes.

        A source on this machine is read in place. Raises `VerificationError` when the bytes are
        not the blob's (nothing is kept) and `NetworkError` when the transfer breaks off (what
        arrived is kept, and the next fetch goes on from there).
        """
        local = source.local_path(descriptor)
        if local is not None:
            _verify(local, descriptor, progress)
            return local
        with self.home.lock(f"blob-{parse_digest(descriptor.digest)}"):
            return self._fetch_remote(source, descriptor, progress)

    def missing_bytes(self, source: Source, descriptor: Descriptor) -> int:
        """Bytes that fetching the blob would add to the home."""
        path = self.home.blob(descriptor.digest)
        if path.exists() or source.local_path(descriptor) is not None:
            return 0
        partial = _partial(path)
        held = partial.stat().st_size if partial.exists() else 0
        return max(0, descriptor.size - held)

    def _fetch_remote(self, source: Source, descriptor: Descriptor, progress: Progress) -> Path:
        path = self.home.blob(descriptor.digest)
        if path.exists():
            try:
                _verify(path, descriptor, lambda count: None)
            except VerificationError:
                path.unlink()
            else:
                progress(descriptor.size)
                return path
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = _partial(path)
        try:
            while True:
                resumed = partial.exists()
                found = self._download(source, descriptor, partial, progress)
                if found == descriptor.digest:
                    break
                partial.unlink()
                if not resumed:
                    raise _wrong_digest(descriptor, found)
                # The old part may have been the wrong one: once more, from the start.
                progress(-descriptor.size)
        except VerificationError:
            partial.unlink(missing_ok=True)
            raise
        finally:
            # What never began is not something to go on from.
            if partial.exists() and descriptor.size and not partial.stat().st_size:
                partial.unlink()
        partial.replace(path)
        return path

    def _download(
        self, source: Source, descriptor: Descriptor, partial: Path, progress: Progress
    ) -> str:
        """Bring `partial` to the blob's size; the digest of what it then holds."""
        stalls = 0
        with partial.open("ab+", buffering=0) as file:
            state = _Hashed(file, progress)
            state.reread(descriptor.size)
            while state.size < descriptor.size:
                before = state.size
                try:
                    with source.stream(descriptor, state.size) as stream:
                        if stream.offset != state.size:
                            state.restart()
                        for chunk in stream.chunks:
                            state.append(chunk)
                            if state.size > descriptor.size:
                                raise _wrong_size(descriptor, f"more than {descriptor.size} bytes")
                except Interrupted as error:
                    stalls = 0 if state.size > before else stalls + 1
                    if stalls > self.stalls:
                        raise _broke_off(descriptor, state.size, error) from None
                    self.sleep(min(_FIRST_DELAY * 2**stalls, _LONGEST_DELAY))
                    continue
                if state.size < descriptor.size:
                    raise _wrong_size(descriptor, f"{state.size} bytes")
            os.fsync(file.fileno())
            return state.digest()


class _Hashed:
    """A file that is appended to, and the hash of all that it holds."""

    def __init__(self, file: FileIO, progress: Progress) -> None:
        self._file = file
        self._progress = progress
        self._state = hashlib.sha256()
        self.size = 0

    def reread(self, limit: int) -> None:
        """Hash what the file holds already; a file longer than `limit` is started again."""
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK):
            self._add(chunk)
        if self.size > limit:
            self.restart()

    def append(self, chunk: bytes) -> None:
        """Write and hash a chunk."""
        view = memoryview(chunk)
        while view:
            view = view[self._file.write(view) :]
        self._add(chunk)

    def restart(self) -> None:
        """Forget everything."""
        self._file.truncate(0)
        self._progress(-self.size)
        self._state = hashlib.sha256()
        self.size = 0

    def digest(self) -> str:
        """The digest of all bytes."""
        return "sha256:" + self._state.hexdigest()

    def _add(self, chunk: bytes) -> None:
        self._state.update(chunk)
        self.size += len(chunk)
        self._progress(len(chunk))


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def _verify(path: Path, descriptor: Descriptor, progress: Progress) -> None:
    size = path.stat().st_size
    if size != descriptor.size:
        raise _wrong_size(descriptor, f"{size} bytes")
    found = sha256_file(path, progress)
    if found != descriptor.digest:
        raise _wrong_digest(descriptor, found)


def _wrong_size(descriptor: Descriptor, found: str) -> VerificationError:
    return VerificationError(
        f"the blob {_name(descriptor)} has the wrong size",
        expected=f"{descriptor.size} bytes",
        found=found,
        remedy="the store is damaged or not to be trusted; try another one",
    )


def _wrong_digest(descriptor: Descriptor, found: str) -> VerificationError:
    return VerificationError(
        f"the blob {_name(descriptor)} has the wrong digest",
        expected=descriptor.digest,
        found=found,
        remedy="the store is damaged or not to be trusted; try another one",
    )


def _broke_off(descriptor: Descriptor, held: int, error: Interrupted) -> NetworkError:
    return NetworkError(
        f"the transfer of {_name(descriptor)} keeps breaking off",
        expected=f"{descriptor.size} bytes",
        found=f"{held} bytes ({error})",
        remedy="try again: it goes on from what has arrived",
    )


def _name(descriptor: Descriptor) -> str:
    return repr(descriptor.title)[1:-1][:120] if descriptor.title else descriptor.digest
