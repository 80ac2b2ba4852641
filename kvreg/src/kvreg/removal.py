"""Removing a staged runtime: refused while it is used, gone with one rename, counted."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvreg import catalogue
from kvreg.errors import ContractError, KvregError, NotFoundError
from kvreg.home import Home
from kvreg.model.digest import is_digest
from kvreg.request import Request, split_identity
from kvreg.runtime import readable_runtimes
from kvreg.usage import users


@dataclass(frozen=True)
class Target:
    """The folder of a staged runtime, damaged or not. `bytes` is what removing it frees."""

    text: str
    folder: Path
    files: int
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            "profile": self.text,
            "folder": str(self.folder),
            "files": self.files,
            "bytes": self.bytes,
        }


def find_target(home: Home, text: str) -> Target:
    """The staged runtime that a PROFILE argument means, also one whose records are damaged.

    Raises `NotFoundError` when nothing of it is staged.
    """
    folder = _folder(home, text)
    if folder is None or not folder.is_dir():
        raise NotFoundError(f"the runtime of {text} is not staged in {home.root}")
    files, size = occupied(folder)
    return Target(text, folder, files, size)


def remove(home: Home, target: Target, *, force: bool = False) -> Target:
    """Remove a staged runtime, and its compiled files with it.

    It is renamed first, so that it is there wholly or not at all. `ContractError` when a process
    uses it, unless `force`. A pull of the same profile is waited for.
    """
    with home.lock(f"runtime-{target.folder.name}"):
        using = users(target.folder)
        if using and not force:
            raise ContractError(
                f"the runtime of {target.text} is in use",
                expected="no process that runs from it",
                found=", ".join(map(str, using)),
                remedy="end them, or add --force: what they have not loaded yet would be missing",
            )
        gone = target.folder.with_name(f".old-{target.folder.name}")
        if gone.exists():
            shutil.rmtree(gone)
        target.folder.rename(gone)
        shutil.rmtree(gone)
        compiled = home.compiled(target.folder)
        if compiled.is_dir():
            shutil.rmtree(compiled)
    return target


def occupied(folder: Path) -> tuple[int, int]:
    """Files below `folder`, and bytes that deleting it frees: what is linked elsewhere stays."""
    files, size = 0, 0
    for root, _, names in os.walk(folder):
        for name in names:
            status = os.lstat(os.path.join(root, name))  # noqa: PTH118
            files += 1
            size += status.st_size if status.st_nlink == 1 else 0
    return files, size


def _folder(home: Home, text: str) -> Path | None:
    if is_digest(text):
        return home.runtime(text)
    name, digest = split_identity(text)
    if digest is not None:
        return home.runtime(Request(text, name, digest=digest).on(home).profile or digest)
    try:
        return home.runtime(catalogue.find_profile(text).digest)
    except KvregError:
        # Not known (any more), or spoilt by its author: it may be staged all the same.
        named = [item.folder for item in readable_runtimes(home) if item.profile_name == text]
        return named[0] if len(named) == 1 else None
