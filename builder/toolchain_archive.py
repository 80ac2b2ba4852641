"""Archives that come out the same whenever they are made from the same files."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from builder.cache import CHUNK, storage_errors


def write_archive(
    folder: Path,
    target: Path,
    *,
    epoch: int,
    prefix: str = "",
    owner: tuple[int, int] | None = None,
    include: Callable[[str], bool] = lambda path: True,
) -> str:
    """Write everything below `folder` as a tar file; returns its sha256 as hex.

    Members are sorted, have the time stamp `epoch` and no names of users or groups. prefix: path
    that the members get in front, its folders included. owner: uid and gid for all of them;
    None keeps the files' own. include: which paths (relative, ``a/b``) to take; what lies below
    a folder that is not taken is not looked at. Raises StorageError.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with storage_errors("write", target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as raw:
                hashing = _HashingWriter(raw)
                with tarfile.open(fileobj=hashing, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                    for parent in _parents(prefix):
                        archive.addfile(_folder(parent, epoch))
                    for path in _walk(folder, "", include):
                        _add(archive, folder, path, prefix, epoch, owner)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    return hashing.state.hexdigest()


def stream_context(dockerfile: bytes, archives: Mapping[str, Path]) -> ContextStream:
    """A build context for the engine, made while it is sent, so that no disk space is needed."""
    return ContextStream(dockerfile, archives)


class ContextStream:
    """Iterates over the bytes of a tar with a Dockerfile and the named files."""

    def __init__(self, dockerfile: bytes, archives: Mapping[str, Path]) -> None:
        self._dockerfile = dockerfile
        self._archives = dict(archives)

    def __iter__(self) -> Iterator[bytes]:
        reading, writing = os.pipe()
        source = os.fdopen(reading, "rb")
        thread = threading.Thread(target=self._write, args=(writing,), daemon=True)
        thread.start()
        try:
            while chunk := source.read(CHUNK):
                yield chunk
        finally:
            source.close()
            thread.join()

    def _write(self, descriptor: int) -> None:
        try:
            with os.fdopen(descriptor, "wb") as sink, tarfile.open(fileobj=sink, mode="w|") as out:
                entry = tarfile.TarInfo("Dockerfile")
                entry.size = len(self._dockerfile)
                out.addfile(entry, _Bytes(self._dockerfile))
                for name, path in sorted(self._archives.items()):
                    entry = tarfile.TarInfo(name)
                    entry.size = path.stat().st_size
                    with path.open("rb") as handle:
                        out.addfile(entry, handle)
        except BrokenPipeError:
            pass  # the reader has given up and says why itself

    def close(self) -> None:
        """Nothing to close; the SDK asks for it."""


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, size: int = -1) -> bytes:
        size = len(self._data) if size < 0 else size
        chunk, self._data = self._data[:size], self._data[size:]
        return chunk


class _HashingWriter:
    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.state = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.state.update(data)
        return self._raw.write(data)


def _parents(prefix: str) -> list[str]:
    parts = prefix.strip("/").split("/") if prefix.strip("/") else []
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _walk(root: Path, below: str, include: Callable[[str], bool]) -> Iterator[str]:
    for entry in sorted(os.scandir(root / below), key=lambda e: e.name):
        path = f"{below}/{entry.name}" if below else entry.name
        if not include(path):
            continue
        yield path
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(root, path, include)


def _folder(name: str, epoch: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, epoch
    return entry


def _add(
    archive: tarfile.TarFile,
    folder: Path,
    path: str,
    prefix: str,
    epoch: int,
    owner: tuple[int, int] | None,
) -> None:
    source = folder / path
    entry = archive.gettarinfo(str(source), arcname="/".join(p for p in (prefix, path) if p))
    if entry is None or stat.S_ISSOCK(source.lstat().st_mode):
        return
    entry.mtime, entry.uname, entry.gname = epoch, "", ""
    if owner is not None:
        entry.uid, entry.gid = owner
    if entry.isreg():
        with source.open("rb") as handle:
            archive.addfile(entry, handle)
    else:
        archive.addfile(entry)
