"""Locked inputs: what a build may read, by name, version and sha256. No lock names a host."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from builder.files import write_bytes
from kvreg.errors import NotFoundError, UsageError

KINDS = ("wheel", "sdist", "members", "tree")
TREE_LITTER = frozenset({"__pycache__", "build", "dist", ".pytest_cache", ".ruff_cache"})
"""Folders in a source tree that are not sources."""

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\Z")


@dataclass(frozen=True)
class Member:
    """One file inside an input of kind ``members``; `size` in bytes."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Input:
    """One file of the package index.

    kind ``wheel`` and ``sdist``: the whole file. kind ``members``: only the named members of a
    wheel, read by HTTP range; `sha256` then is the whole wheel's, as the index states it, and
    each member has its own. kind ``tree``: a folder of this checkout, `sha256` by `tree_input`.
    """

    name: str
    version: str
    kind: str
    filename: str
    size: int
    sha256: str
    members: tuple[Member, ...] = ()

    def digests(self) -> tuple[str, ...]:
        """The hex digests of the files that the cache must hold for this input."""
        if self.kind == "members":
            return tuple(member.sha256 for member in self.members)
        return () if self.kind == "tree" else (self.sha256,)


def tree_files(root: Path) -> list[Path]:
    """The files of a source tree, sorted by path, without what tools leave in it."""
    return sorted(
        file
        for file in root.rglob("*")
        if file.is_file() and not TREE_LITTER.intersection(file.relative_to(root).parts)
    )


def tree_input(name: str, version: str, filename: str, root: Path) -> Input:
    """A folder as a locked input.

    Its digest is the sha256 over one line a file: ``<sha256>  <path>\\n``, sorted by path, as
    `sha256sum` prints them.
    """
    total, digest = 0, hashlib.sha256()
    for file in tree_files(root):
        data = file.read_bytes()
        total += len(data)
        path = file.relative_to(root).as_posix()
        digest.update(f"{hashlib.sha256(data).hexdigest()}  {path}\n".encode())
    return Input(name, version, "tree", filename, total, digest.hexdigest())


def read_lock(path: Path) -> tuple[Input, ...]:
    """Read a lock file. Raises NotFoundError, or UsageError naming every fault in it."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise NotFoundError(
            f"there is no lock file {path.name} in {path.parent.name}",
            remedy=f"write it with: builder lock --profile {path.parent.name}",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name} is not a TOML file", found=str(error)) from error
    faults: list[str] = []
    if data.get("version") != 1:
        faults.append(f"version: expected 1, found {data.get('version')!r}")
    entries = data.get("input", [])
    inputs: list[Input] = []
    if not isinstance(entries, list):
        faults.append("input: expected an array of tables")
        entries = []
    for number, entry in enumerate(entries, start=1):
        found = _input(entry, f"input {number}", faults)
        if found is not None:
            inputs.append(found)
    filenames = [i.filename for i in inputs if i.kind != "members"]
    for name in sorted({n for n in filenames if filenames.count(n) > 1}):
        faults.append(f"file name {name} is locked more than once")
    if faults:
        raise UsageError(
            f"{path.name} is not a valid lock file",
            expected="a lock as `builder lock` writes it",
            found="; ".join(faults),
            remedy=f"write it anew with: builder lock --profile {path.parent.name}",
        )
    return tuple(inputs)


def _input(entry: object, where: str, faults: list[str]) -> Input | None:
    if not isinstance(entry, dict):
        faults.append(f"{where}: expected a table")
        return None
    before = len(faults)
    text = {
        key: _text(entry, key, where, faults) for key in ("name", "version", "kind", "filename")
    }
    size, sha256 = _size_and_hash(entry, where, faults)
    if text["kind"] and text["kind"] not in KINDS:
        faults.append(f"{where}: kind: expected one of {', '.join(KINDS)}, found {text['kind']!r}")
    if text["filename"] and not _FILENAME.match(text["filename"]):
        faults.append(f"{where}: filename: not a plain file name: {text['filename']!r}")
    members: list[Member] = []
    listed = entry.get("member", [])
    if (text["kind"] == "members") != bool(listed):
        faults.append(f"{where}: member: expected exactly when kind is 'members'")
    for number, member in enumerate(listed if isinstance(listed, list) else [], start=1):
        place = f"{where} member {number}"
        if not isinstance(member, dict):
            faults.append(f"{place}: expected a table")
            continue
        path = _text(member, "path", place, faults)
        pure = PurePosixPath(path)
        if path and (pure.is_absolute() or ".." in pure.parts or "\\" in path):
            faults.append(f"{place}: path leaves the wheel: {path!r}")
        members.append(Member(path, *_size_and_hash(member, place, faults)))
    unknown = set(entry) - {"name", "version", "kind", "filename", "size", "sha256", "member"}
    if unknown:
        faults.append(f"{where}: unknown keys {', '.join(sorted(unknown))}")
    if len(faults) > before:
        return None
    return Input(**text, size=size, sha256=sha256, members=tuple(members))


def _text(entry: dict[str, object], key: str, where: str, faults: list[str]) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        faults.append(f"{where}: {key}: expected text, found {value!r}")
        return ""
    return value


def _size_and_hash(entry: dict[str, object], where: str, faults: list[str]) -> tuple[int, str]:
    size, sha256 = entry.get("size"), entry.get("sha256")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        faults.append(f"{where}: size: expected a number of bytes, found {size!r}")
        size = 0
    if not isinstance(sha256, str) or not _SHA256.match(sha256):
        faults.append(f"{where}: sha256: expected 64 hex digits, found {sha256!r}")
        sha256 = ""
    return size, sha256


def write_lock(path: Path, inputs: Iterable[Input], header: str) -> None:
    """Write a lock file (temporary file, fsync, rename); `header` becomes its comment."""
    lines = [f"# {line}".rstrip() for line in header.splitlines()] + ["version = 1"]
    for item in sorted(inputs, key=lambda i: (i.name, i.filename, i.kind)):
        lines += ["", "[[input]]"]
        lines += [f'{key} = "{getattr(item, key)}"' for key in ("name", "version", "kind")]
        lines += [f'filename = "{item.filename}"', f"size = {item.size}"]
        lines += [f'sha256 = "{item.sha256}"']
        for member in item.members:
            lines += ["[[input.member]]", f'path = "{member.path}"', f"size = {member.size}"]
            lines += [f'sha256 = "{member.sha256}"']
    write_bytes(path, ("\n".join(lines) + "\n").encode())
