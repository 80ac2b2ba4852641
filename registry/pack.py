"""An artifact as a flat folder that survives an upload, for example as a Kaggle dataset.

Such places drop directories, unpack archives by their names, and change names with colons or
leading dots. So every blob lies in the folder itself, called ``sha256-<hex>`` with no extension,
beside ``index.json`` and ``oci-layout``; ``packed.json`` lists every file with its size and sha256.
Clients and `registry.layout` read such a folder where it is, read-only or not.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvreg.console import human_bytes, storage_error
from kvreg.errors import KvregError, NotFoundError, Problem, StorageError, VerificationError
from kvreg.model.canonical import MAX_SAFE_INTEGER, canonical_json
from kvreg.model.digest import is_digest, sha256_file
from kvreg.model.layout import BLOBS, PACKING_LIST, packed_name
from kvreg.model.oci import MAX_MANIFEST_BYTES, Descriptor, parse_json
from registry.content import Content, parse_content
from registry.copy import Copied, copy
from registry.files import sync_directory, write_atomically
from registry.garbage import collect_garbage
from registry.index import LayoutIndex
from registry.layout import Layout
from registry.store import Store
from registry.stream import Progress
from registry.text import is_plain_name

DEFAULT_LIMIT = 20 * 10**9
"""Bytes that one file may have: what Kaggle takes."""

_SCHEMA = 1
_PACKED_PREFIX = packed_name("sha256:" + "0" * 64).rstrip("0")


@dataclass(frozen=True)
class PackedFile:
    """A file of a packed folder; `size` in bytes."""

    name: str
    size: int
    digest: str

    def to_dict(self) -> dict[str, object]:
        """As it stands in the packing list."""
        return {"name": self.name, "size": self.size, "sha256": self.digest.partition(":")[2]}


@dataclass(frozen=True)
class Packed:
    """A packed folder: the artifact in it, its tags, and every file but the packing list."""

    folder: Path
    digest: str
    tags: tuple[str, ...]
    files: tuple[PackedFile, ...]

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.size for file in self.files)

    def to_dict(self) -> dict[str, object]:
        """As JSON-ready data."""
        return {"folder": str(self.folder), **self.listing()}

    def listing(self) -> dict[str, object]:
        """What the packing list says."""
        return {
            "schema": _SCHEMA,
            "artifact": self.digest,
            "tags": list(self.tags),
            "files": [file.to_dict() for file in self.files],
        }


def pack(
    source: Store,
    reference: str,
    folder: Path,
    *,
    limit: int = DEFAULT_LIMIT,
    progress: Progress | None = None,
) -> Packed:
    """Write the artifact `reference` with its attestations to the new directory `folder`.

    It appears complete or not at all; a pack that was killed goes on where it stopped.
    `StorageError` when a file would be larger than `limit` bytes, or when `folder` is there already
    and not empty.
    """
    _refuse_existing(folder)
    _refuse_large(source, reference, limit)
    with _storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = folder.with_name(f".{folder.name}.packing")
        with _held(work):
            _refuse_existing(folder)
            layout = _layout(work)
            copied = copy(source, layout, reference, progress=progress)
            collect_garbage(layout, older_than=0)
            packed = Packed(folder, copied.descriptor.digest, copied.tags, tuple(_flatten(work)))
            write_atomically(work / PACKING_LIST, [canonical_json(packed.listing())])
            if folder.exists():
                folder.rmdir()
            work.rename(folder)
            sync_directory(folder.parent)
    return packed


def read_packed(folder: Path) -> Packed:
    """Read the packing list of a folder. `NotFoundError` when there is none."""
    path = folder / PACKING_LIST
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_MANIFEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(
            f"{folder} is not a packed artifact", expected=f"the file {path}"
        ) from None
    table = parse_json(raw, PACKING_LIST)
    try:
        if table["schema"] != _SCHEMA or not is_digest(table["artifact"]):
            raise ValueError
        tags = tuple(str(tag) for tag in table["tags"])
        return Packed(folder, table["artifact"], tags, tuple(map(_listed, table["files"])))
    except (ValueError, TypeError, LookupError):
        raise VerificationError(
            f"{path} is malformed",
            expected="schema 1 with artifact, tags and files",
            found=repr(table)[:200],
        ) from None


def check_packed(folder: Path, progress: Progress | None = None) -> Packed:
    """Hash every file of a packed folder. `VerificationError` names all that differ at once."""
    packed = read_packed(folder)
    problems = [
        problem
        for file in packed.files
        if (problem := _judge(folder / file.name, file, progress)) is not None
    ]
    if problems:
        raise VerificationError(
            f"{folder} is not what was packed",
            problems=problems,
            remedy="upload or fetch the files that differ again;"
            " an upload must keep names and must not unpack anything",
        )
    return packed


def unpack(
    folder: Path, destination: Store, progress: Progress | None = None
) -> tuple[Copied, ...]:
    """Check a packed folder and copy its artifact with its tags into another store."""
    packed = check_packed(folder)
    with Layout(folder) as source:
        names = packed.tags or (packed.digest,)
        return tuple(copy(source, destination, name, progress=progress) for name in names)


def _listed(item: Any) -> PackedFile:
    name, size, digest = item["name"], item["size"], f"sha256:{item['sha256']}"
    if not is_plain_name(name) or not is_digest(digest):
        raise ValueError
    if type(size) is not int or not 0 <= size <= MAX_SAFE_INTEGER:
        raise ValueError
    return PackedFile(name, size, digest)


def _judge(path: Path, file: PackedFile, progress: Progress | None) -> Problem | None:
    if not path.exists():
        return Problem(file.name, "is missing")
    if not path.is_file():
        return Problem(file.name, "is not a file")
    size = path.stat().st_size
    if size != file.size:
        return Problem(file.name, "has another size", f"{file.size} bytes", f"{size} bytes")
    digest = sha256_file(path, progress)
    if digest != file.digest:
        return Problem(file.name, "has other bytes", file.digest, digest)
    return None


def _layout(work: Path) -> Layout:
    """The layout in the working directory, without names; the blobs that a pack left which was
    killed at whatever point are in it."""
    layout = Layout(work)
    (work / BLOBS / "sha256").mkdir(parents=True, exist_ok=True)
    for path in list(work.glob(f"{_PACKED_PREFIX}*")):
        path.rename(work / BLOBS / "sha256" / path.name.removeprefix(_PACKED_PREFIX))
    (work / PACKING_LIST).unlink(missing_ok=True)
    layout.prepare()
    with layout.exclusive():
        layout.replace_index(LayoutIndex())
    return layout


def _flatten(work: Path) -> Iterator[PackedFile]:
    """Move the blobs of a layout beside its index, and leave nothing else there."""
    blobs = work / BLOBS / "sha256"
    if blobs.is_dir():
        for path in list(blobs.iterdir()):
            path.rename(work / packed_name(f"sha256:{path.name}"))
        blobs.rmdir()
        blobs.parent.rmdir()
    for path in sorted(work.iterdir()):
        if path.name.startswith("."):
            path.unlink()
        else:
            yield PackedFile(path.name, path.stat().st_size, sha256_file(path))


def _refuse_large(source: Store, reference: str, limit: int) -> None:
    problems = [
        Problem(
            item.title or item.digest, "is too large", human_bytes(limit), human_bytes(item.size)
        )
        for item in _blobs(source, reference)
        if item.size > limit
    ]
    if problems:
        raise StorageError(
            f"{source.location} has files that are too large to be packed", problems=problems
        )


def _blobs(source: Store, reference: str) -> Iterator[Descriptor]:
    """Every blob of an artifact and its attestations."""
    found = source.resolve(reference)
    if found is None:
        raise NotFoundError(f"{source.location} has no {reference}")
    waiting, seen = [found.digest], set()
    while waiting:
        digest = waiting.pop()
        if digest in seen:
            continue
        seen.add(digest)
        content: Content = parse_content(source.fetch_manifest(digest))
        yield from content.blobs
        waiting += [item.digest for item in content.manifests]
        waiting += [item.digest for item in source.referrers(digest)]


def _refuse_existing(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise StorageError(f"{folder} is there and is not a directory")
    if folder.is_dir() and any(folder.iterdir()):
        raise StorageError(
            f"{folder} is not empty",
            expected="a new directory",
            remedy="choose another one, or remove it",
        )


@contextlib.contextmanager
def _held(work: Path) -> Iterator[None]:
    """Make the working directory and keep other processes that pack to the same place out of it."""
    work.mkdir(exist_ok=True)
    handle = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise StorageError(
            f"another process is packing to {work}", remedy="wait for it to end, and try again"
        ) from None
    finally:
        os.close(handle)


@contextlib.contextmanager
def _storage_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except KvregError:
        raise
    except OSError as error:
        raise storage_error(error, f"could not pack to {folder}") from error
