"""The compile cache: ccache's folder of one toolchain, sealed, limited, and counted.

A folder is named after the toolchain and the digest of its compilers (the image's layers, less
CPython's), and inside the container every path is fixed, so that the same sources compiled with the
same compilers hit, whatever the checkout, the user or the machine. ccache itself looks at the
compilers' bytes too.

The seal lies beside the folder, where no container can reach it: the sha256 of every entry, written
when a build has ended. An entry that differs from its seal when the next build starts is refused.
"""

from __future__ import annotations

import fcntl
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.cache import InputCache, file_sha256, storage_errors
from builder.files import write_json
from builder.toolchain import ToolchainImage
from builder.workspace import give
from kvreg.errors import Problem, UsageError, VerificationError

FOLDER = "ccache"
DEFAULT_LIMIT = "5G"
"""Size limit of a folder, as ccache reads it (powers of ten)."""

SCHEMA = 1
ENTRY = re.compile(r"(?:[0-9a-f]/){1,4}[0-9a-z]{4,64}[RM]")
"""Paths of entries: ``R`` holds what a compiler made, ``M`` which sources lead there."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kMGT]?)(i?)")
_UNITS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True)
class Sealed:
    """What is known of one entry: bytes and hex sha256."""

    size: int
    sha256: str


@dataclass(frozen=True)
class CompileCache:
    """The folder of one toolchain. `compilers` is ``sha256:<hex>``."""

    root: Path
    toolchain: str
    compilers: str

    @property
    def name(self) -> str:
        """``<toolchain>-<first 16 hex of the compilers' digest>``."""
        return f"{self.toolchain}-{self.compilers.removeprefix('sha256:')[:16]}"

    @property
    def folder(self) -> Path:
        """ccache's own folder: what the container sees."""
        return self.root / self.name

    @property
    def _seal(self) -> Path:
        return self.root / f"{self.name}.json"

    def entries(self) -> dict[str, Path]:
        """Every entry by its path in the folder."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            relative = path.relative_to(self.folder).as_posix()
            if ENTRY.fullmatch(relative) and path.is_file() and not path.is_symlink():
                found[relative] = path
        return found

    def sealed(self) -> dict[str, Sealed]:
        """The seal's entries; none where nothing was sealed yet."""
        document = self._document()
        return {path: Sealed(*value) for path, value in document.get("entries", {}).items()}

    @property
    def restored(self) -> str | None:
        """The digest of the artifact that it was restored from, if any."""
        return self._document().get("restored")

    def _document(self) -> dict[str, Any]:
        try:
            document = json.loads(self._seal.read_text("utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return document if document.get("schema") == SCHEMA else {}

    def prepare(self) -> None:
        """Make the folder, writable for the container's user. Raises StorageError."""
        with storage_errors("make the compile cache", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            give(self.folder)

    def seal(self, restored: str | None = None) -> dict[str, Sealed]:
        """Hash every entry and keep the digests; returns them."""
        entries: dict[str, Sealed] = {}
        for path, file in self.entries().items():
            try:
                entries[path] = Sealed(file.stat().st_size, file_sha256(file))
            except FileNotFoundError:
                continue  # another build's ccache made room meanwhile
        document = {
            "schema": SCHEMA,
            "toolchain": self.toolchain,
            "compilers": self.compilers,
            "restored": restored or self.restored,
            "entries": {path: [item.size, item.sha256] for path, item in entries.items()},
        }
        with storage_errors("seal the compile cache", self._seal):
            self.root.mkdir(parents=True, exist_ok=True)
            write_json(self._seal, document)
        return entries

    def damage(self, *, results_only: bool = False) -> list[Problem]:
        """Entries whose bytes are not those that were sealed."""
        problems = []
        there = self.entries()
        for path, known in self.sealed().items():
            if path not in there or (results_only and not path.endswith("R")):
                continue
            found = file_sha256(there[path])
            if found != known.sha256:
                problems.append(
                    Problem(
                        f"{self.name}/{path}",
                        "is not what was sealed",
                        f"sha256:{known.sha256}",
                        f"sha256:{found}",
                    )
                )
        return problems

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Around a build: checks the seal before it and renews it after it.

        What a killed build or one beside this left half told is not held against it: then results
        are checked alone, which never change. Raises VerificationError.
        """
        self.prepare()
        lock, unfinished = self.root / f"{self.name}.lock", self.root / f"{self.name}.open"
        with lock.open("a") as handle:
            alone = _try_lock(handle)
            self.check(results_only=unfinished.exists() or not alone)
            unfinished.touch()
            fcntl.flock(handle, fcntl.LOCK_SH)
            yield
            self.seal()
            if _try_lock(handle):
                unfinished.unlink(missing_ok=True)

    def check(self, *, results_only: bool = False) -> None:
        """Raises VerificationError with both digests of every entry that was changed."""
        problems = self.damage(results_only=results_only)
        if problems:
            raise VerificationError(
                f"the compile cache {self.name} was changed since its last build",
                problems=problems,
                remedy="find out why; then drop what was changed: builder cache prune --damaged,"
                " or build without: --no-compile-cache",
            )

    def prune(
        self,
        *,
        limit: int | None = None,
        older_than_days: float | None = None,
        damaged: bool = False,
    ) -> tuple[int, int]:
        """Remove entries, the longest unused first: how many, and bytes.

        limit: bytes that may stay. older_than_days: days since an entry last served. damaged: what
        differs from its seal.
        """
        bad = {p.where.partition("/")[2] for p in self.damage()} if damaged else set()
        entries = [(file.stat(), path, file) for path, file in self.entries().items()]
        entries.sort(key=lambda item: item[0].st_mtime)
        total = sum(state.st_size for state, _, _ in entries)
        oldest = time.time() - older_than_days * 86400 if older_than_days is not None else None
        count = removed = 0
        for state, path, file in entries:
            too_old = oldest is not None and state.st_mtime < oldest
            too_much = limit is not None and total > limit
            if path in bad or too_old or too_much:
                file.unlink(missing_ok=True)
                total -= state.st_size
                count, removed = count + 1, removed + state.st_size
        self.seal()
        return count, removed

    def storage(self, limit: str) -> dict[str, Any]:
        """What a build record says of it: sizes in bytes, and the artifact that it came from."""
        found = self.describe()
        return {
            "objects": found["objects"],
            "bytes": found["bytes"],
            "limit_bytes": parse_size(limit),
            "restored": found["restored"],
        }

    def describe(self) -> dict[str, Any]:
        """Sizes in bytes, times in seconds since 1970, as JSON-ready data."""
        entries, sealed = self.entries(), self.sealed()
        times = [file.stat().st_mtime for file in entries.values()]
        return {
            "name": self.name,
            "toolchain": self.toolchain,
            "compilers": self.compilers,
            "folder": str(self.folder),
            "entries": len(entries),
            "objects": sum(path.endswith("R") for path in entries),
            "bytes": sum(file.stat().st_size for file in entries.values()),
            "sealed": sum(path in sealed for path in entries),
            "restored": self.restored,
            "oldest": int(min(times)) if times else None,
            "newest": int(max(times)) if times else None,
        }


def cache_of(cache: InputCache, image: ToolchainImage) -> CompileCache:
    """The compile cache of a toolchain's image."""
    return CompileCache(cache.root / FOLDER, image.name, image.compilers_digest)


def known_caches(cache: InputCache) -> tuple[CompileCache, ...]:
    """Every compile cache that was sealed once."""
    root = cache.root / FOLDER
    found = []
    for path in sorted(root.glob("*.json")):
        try:
            document = json.loads(path.read_text("utf-8"))
            found.append(CompileCache(root, document["toolchain"], document["compilers"]))
        except (ValueError, KeyError):
            continue  # not a seal
    return tuple(item for item in found if item.folder.is_dir())


def parse_size(text: str) -> int:
    """Bytes of a size as ccache reads it. Raises UsageError.

    >>> parse_size("5G"), parse_size("512Mi"), parse_size("100")
    (5000000000, 536870912, 100)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise UsageError("this is not a size", expected="such as 5G or 512Mi", found=repr(text))
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _UNITS[match[2]])


def _try_lock(handle: Any) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
