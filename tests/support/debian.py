"""Packages of any Debian suite, unpacked privately: nothing is installed.

They are known by sha256. When the mirror has moved on, what the suite has now is taken, signed by
Debian's keys.
"""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.apt import Package, PrivateApt
from builder.cache import InputCache
from kvreg.errors import NotFoundError
from kvreg.model.digest import sha256_bytes
from registry.files import locked


@dataclass(frozen=True)
class Unpacked:
    """A folder with the content of `packages`, which are newer than those asked for or not."""

    folder: Path
    packages: tuple[Package, ...]
    newer: bool


def unpacked(name: str, suite: str, wanted: Sequence[Package]) -> Unpacked:
    """The packages of a tool in a folder of their own, fetched when the cache lacks them.

    `KvregError` when they cannot be had.
    """
    cache = InputCache()
    root = cache.folder("test-tools")
    packages, newer = tuple(wanted), False
    with locked(root / "lock", timeout=900):
        if not _folder(root, name, packages).exists():
            apt = suite_apt(suite)
            if not all(cache.has(item.sha256) for item in packages):
                apt.update()
                try:
                    apt.fetch(packages, cache)
                except NotFoundError:
                    packages = newest(apt, [item.name for item in packages])
                    newer = True
                    apt.fetch(packages, cache)
            folder = _folder(root, name, packages)
            if not folder.exists():
                _unpack([cache.path(item.sha256) for item in packages], folder)
    return Unpacked(_folder(root, name, packages), packages, newer)


def suite_apt(suite: str) -> PrivateApt:
    """An apt of our own for a suite; not updated."""
    return PrivateApt(InputCache().folder("apt") / suite, suite, ("main",))


def newest(apt: PrivateApt, names: Sequence[str]) -> tuple[Package, ...]:
    """What a suite has now."""
    return tuple(
        Package(found.name, found.version, found.architecture, found.size, found.sha256)
        for found in apt.locate(tuple(names))
    )


def _folder(root: Path, name: str, packages: Sequence[Package]) -> Path:
    parts = "".join(sorted(item.sha256 for item in packages))
    return root / f"{name}-{sha256_bytes(parts.encode())[7:19]}"


def _unpack(files: Sequence[Path], folder: Path) -> None:
    temporary = folder.with_name(f".{folder.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    for file in files:
        subprocess.run(["dpkg-deb", "-x", str(file), str(temporary)], check=True)
    temporary.replace(folder)
