"""What a home holds that nothing needs any more.

=============  ===========================================================================
``blob``       needed by no staged runtime and no lock file, and not young
``partial``    what arrived of a blob before a pull was cut off, and not young
``staging``    half-made or half-removed runtimes that a killed process left behind
``pycache``    compiled files whose source is gone
``client``     what another ``kvreg.pyz`` than this one unpacked, and not lately
=============  ===========================================================================

Nobody pulls meanwhile: pulls hold the store's lock shared, this takes it alone.
"""

import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvreg.acquisition import STORE_LOCK, kept_manifest
from kvreg.errors import ContractError, KvregError
from kvreg.home import Home
from kvreg.lockfile import Lockfile
from kvreg.removal import occupied
from kvreg.runtime import read_runtime, staged_folders

Kind = Literal["blob", "partial", "staging", "pycache", "client"]

DEFAULT_AGE = 24 * 3600.0
"""Seconds for which a blob that nothing needs may still be wanted: by a pull that comes again."""

_HEX = re.compile(r"[0-9a-f]{64}")
_UNFINISHED = (".staging-", ".old-")


@dataclass(frozen=True)
class Item:
    """One thing to delete: a file, a folder or, of `pycache`, many files. `bytes` are freed."""

    kind: Kind
    path: Path
    bytes: int
    files: tuple[Path, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        fields = {"kind": self.kind, "path": str(self.path), "bytes": self.bytes}
        return {**fields, "files": len(self.files)} if self.files else fields


@dataclass(frozen=True)
class Garbage:
    """What was found. `young` counts blobs and partials that nothing needs and that stay for now;
    `damaged` are runtimes whose records cannot be read, so that all blobs stay."""

    home: Path
    items: tuple[Item, ...]
    young: int
    damaged: tuple[Path, ...]
    deleted: bool = False

    @property
    def bytes(self) -> int:
        """What deleting everything frees."""
        return sum(item.bytes for item in self.items)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            "home": str(self.home),
            "deleted": self.deleted,
            "items": [item.to_dict() for item in self.items],
            "bytes": self.bytes,
            "young": self.young,
            "damaged": [str(path) for path in self.damaged],
        }


def collect(
    home: Home, locks: Sequence[Lockfile], older_than: float = DEFAULT_AGE, *, delete: bool = False
) -> Garbage:
    """Find what nothing needs, and delete it with `delete`. `older_than` is in seconds.

    `ContractError` while a pull is running.
    """

    def busy() -> None:
        raise ContractError(
            f"a pull is running in {home.root}",
            expected="nobody who uses its blobs",
            remedy="try again when it has ended",
        )

    with home.lock(STORE_LOCK, busy):
        found = _survey(home, locks, time.time() - older_than)
        if not delete:
            return found
        for item in found.items:
            _delete(home, item)
    return Garbage(home.root, found.items, found.young, found.damaged, deleted=True)


def _survey(home: Home, locks: Sequence[Lockfile], before: float) -> Garbage:
    needed, damaged = _needed(home, locks)
    items: list[Item] = []
    young = 0
    for path in _blob_files(home):
        is_blob = _HEX.fullmatch(path.name) is not None
        if is_blob and (path.name in needed or damaged):
            continue
        status = path.stat()
        if status.st_mtime > before:
            young += 1
        else:
            size = status.st_size if status.st_nlink == 1 else 0
            items.append(Item("blob" if is_blob else "partial", path, size))
    for folder in _unfinished(home):
        items.append(Item("staging", folder, occupied(folder)[1]))
    items += [
        Item("client", folder, occupied(folder)[1])
        for folder in _clients(home)
        if folder.stat().st_mtime <= before
    ]
    orphans = tuple(_orphans(home))
    if orphans:
        size = sum(path.stat().st_size for path in orphans)
        items.append(Item("pycache", home.pycache, size, orphans))
    return Garbage(home.root, tuple(items), young, damaged)


def _needed(home: Home, locks: Sequence[Lockfile]) -> tuple[set[str], tuple[Path, ...]]:
    """Hex digests of the blobs that are needed, and the runtimes that cannot say what they need."""
    digests: set[str] = {digest for lock in locks for digest in lock.digests()}
    damaged = []
    for folder in staged_folders(home):
        try:
            runtime = read_runtime(folder)
        except KvregError:
            damaged.append(folder)
            continue
        digests |= {runtime.profile_digest, runtime.manifest_digest}
        digests |= {f"sha256:{wheel.sha256}" for wheel in runtime.wheels}
        if (manifest := kept_manifest(home, runtime)) is not None:
            digests |= {layer.digest for layer in manifest.layers}
    return {digest.removeprefix("sha256:") for digest in digests}, tuple(damaged)


def _blob_files(home: Home) -> list[Path]:
    folder = home.root / "blobs" / "sha256"
    return sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []


def _unfinished(home: Home) -> list[Path]:
    if not home.runtimes.is_dir():
        return []
    return sorted(
        path
        for path in home.runtimes.iterdir()
        if path.name.startswith(_UNFINISHED) and path.is_dir()
    )


def _clients(home: Home) -> list[Path]:
    """Unpacked clients but the one that runs, which has just been unpacked or is wanted again."""
    folder = home.root / "client"
    running = Path(__file__).resolve()
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in found if not running.is_relative_to(path.resolve())]


def _orphans(home: Home) -> Iterator[Path]:
    """Compiled files whose source is not there any more."""
    for root, _, names in os.walk(home.pycache):
        source = Path("/") / Path(root).relative_to(home.pycache)
        # As Python's own prefix arranges them, and as the start-up hook of runtimes does.
        source = source.parent if source.name == "__pycache__" else source
        for name in names:
            # module.cpython-312.pyc, module.cpython-312.opt-1.pyc
            module = name.rpartition(".cpython-")[0]
            if module and not (source / f"{module}.py").exists():
                yield Path(root) / name


def _delete(home: Home, item: Item) -> None:
    if item.kind in ("staging", "client"):
        shutil.rmtree(item.path)
    elif item.kind == "pycache":
        for path in item.files:
            path.unlink(missing_ok=True)
        for root, _, _ in os.walk(home.pycache, topdown=False):
            if not any(os.scandir(root)):
                Path(root).rmdir()
    else:
        item.path.unlink(missing_ok=True)
