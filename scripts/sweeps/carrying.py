"""What travels between machines: the state of a sweep, the evidence of new cells, caches.

The state is small and goes back and forth; the evidence goes one way. A ledger only ever grows, so
of two states the longer one is the later one, and must begin with the other.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

STATE = ("plan.toml", "identity.json", "facts.json", "ledger.jsonl")
CACHES = "caches.tar.xz"
_STATE_SUFFIX = ".state.tar.xz"
_LIMIT = 14 << 20
"""Bytes of files in one archive, before compression: no archive may pass 16 MiB."""
_LARGE = 40_000_000


class Mismatch(Exception):
    """Two states are of different sweeps, or of one that was gone on with twice."""


def restore(carried: Path, work: Path, name: str) -> None:
    """Bring the state of a sweep into ``work/name``, unless what is there is later."""
    archive = carried / f"{name}{_STATE_SUFFIX}"
    if not archive.is_file():
        return
    folder = work / name
    with tarfile.open(archive) as tar:
        stream = tar.extractfile("ledger.jsonl")
        ledger = stream.read() if stream else b""
        mine = folder / "ledger.jsonl"
        if mine.exists():
            found = mine.read_bytes()
            if found.startswith(ledger):
                return
            if not ledger.startswith(_whole(found)):
                raise Mismatch(f"{archive} does not go on with {mine}")
        folder.mkdir(parents=True, exist_ok=True)
        tar.extractall(folder, filter="data")


def restore_caches(carried: Path, work: Path) -> None:
    """Bring the caches, where there are none."""
    archive = carried / CACHES
    if archive.is_file() and not (work / "caches").exists():
        with tarfile.open(archive) as tar:
            tar.extractall(work, filter="data")
        _remember(work)


def save(folder: Path, out: Path) -> None:
    """Pack a sweep's state, and the evidence that has not been packed before."""
    if not (folder / "ledger.jsonl").exists():
        return
    name = folder.name
    with tarfile.open(out / f"{name}{_STATE_SUFFIX}", "w:xz") as tar:
        for part in STATE:
            if (folder / part).exists():
                tar.add(folder / part, part)
    marks = folder.with_name(f"{name}.sent.json")
    sent = set(json.loads(marks.read_text("utf-8"))) if marks.exists() else set()
    new = [
        path
        for kind in ("cells", "gates")
        for path in sorted((folder / kind).glob("*/attempt-*"))
        if path.relative_to(folder).as_posix() not in sent
    ]
    for number, group in enumerate(_groups(new), start=1):
        target = out / f"{name}.cells-{len(sent)}-{number}.tar.gz"
        with tarfile.open(target, "w:gz", compresslevel=5) as tar:
            for path in group:
                tar.add(path, path.relative_to(folder).as_posix())
    sent.update(path.relative_to(folder).as_posix() for path in new)
    marks.write_text(json.dumps(sorted(sent)), "utf-8")


def save_caches(work: Path, out: Path) -> None:
    """Pack the caches when they are not what they were."""
    caches = work / "caches"
    if not caches.exists() or _print_of(caches) == _remembered(work):
        return
    size = sum(path.stat().st_size for path in caches.rglob("*") if path.is_file())
    # A machine that is lent for minutes has none to spare for the last tenth.
    preset = 6 if size < _LARGE else 1
    with tarfile.open(out / CACHES, "w:xz", preset=preset) as tar:
        tar.add(caches, "caches")
    _remember(work)


def merge(folders: Sequence[Path], target: Path) -> dict[str, int]:
    """Whole sweep directories from the files of calls, in order; cells with files by name."""
    names = set()
    for folder in folders:
        for archive in sorted(folder.glob("*.cells-*.tar.gz")):
            name = archive.name.partition(".cells-")[0]
            with tarfile.open(archive) as tar:
                tar.extractall(target / name, filter="data")
        for archive in sorted(folder.glob(f"*{_STATE_SUFFIX}")):
            name = archive.name.removesuffix(_STATE_SUFFIX)
            restore(folder, target, name)
            names.add(name)
    return {name: len(list((target / name / "cells").glob("*"))) for name in sorted(names)}


def _groups(paths: Iterable[Path]) -> list[list[Path]]:
    """Neighbours whose gzipped size is surely below the limit: text shrinks to a third."""
    groups: list[list[Path]] = []
    size = 0
    for path in paths:
        mine = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        if not groups or size + mine > 2 * _LIMIT:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += mine
    return groups


def _whole(ledger: bytes) -> bytes:
    return ledger[: ledger.rfind(b"\n") + 1]


def _print_of(folder: Path) -> str:
    names = sorted(
        f"{path.relative_to(folder)} {path.stat().st_size}"
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    )
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


def _remembered(work: Path) -> str | None:
    path = work / "caches.sha256"
    return path.read_text("utf-8") if path.exists() else None


def _remember(work: Path) -> None:
    (work / "caches.sha256").write_text(_print_of(work / "caches"), "utf-8")
