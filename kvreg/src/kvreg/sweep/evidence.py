"""Evidence: a sweep directory as one tar file, the same bytes for the same files.

The tar's first member, ``evidence.json``, names plan, runtime artifact, states and the SHA-256 of
every other member. Names are sorted, owners and times are nil. The file is what an artifact's
referrer of media type ``application/vnd.kvreg.evidence.v1+tar`` carries.
"""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvreg.errors import ContractError, Problem, StorageError, VerificationError
from kvreg.model.canonical import canonical_json
from kvreg.model.digest import sha256_file
from kvreg.sweep.ledger import LEDGER_FILE, read_ledger, sync_directory
from kvreg.sweep.plan import load_plan
from kvreg.sweep.session import read_identity
from kvreg.sweep.status import status_of

SUMMARY = "evidence.json"
_LEFT_OUT = (".partial",)


@dataclass(frozen=True)
class Evidence:
    """A packed sweep. `artifact` is the manifest digest of the runtime, None for other engines."""

    path: Path
    digest: str
    size: int
    plan: str
    artifact: str | None
    label: str | None
    states: dict[str, int]
    files: int

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return {
            "path": str(self.path),
            "digest": self.digest,
            "size": self.size,
            "plan": self.plan,
            "artifact": self.artifact,
            "label": self.label,
            "states": self.states,
            "files": self.files,
        }


def pack(folder: Path, output: Path, *, unfinished: bool = False) -> Evidence:
    """Pack a sweep directory into `output`.

    Raises `ContractError` for a sweep with cells left unless `unfinished`, or whose evidence
    differs from what its ledger says, and `StorageError` when `output` lies in `folder`.
    """
    if output.absolute().is_relative_to(folder.absolute()):
        raise StorageError("the file cannot lie in the directory that it packs", found=str(output))
    identity = read_identity(folder)
    plan = load_plan(folder)
    found = status_of(folder)
    if found.done < found.cells and not unfinished:
        raise ContractError(
            "the sweep is not finished",
            expected=f"{found.cells} cells done",
            found=str(found.done),
            remedy="resume it, or pack it as it is with --unfinished",
        )
    problems = _differences(folder)
    if problems:
        raise ContractError("evidence differs from the ledger", problems=problems)
    names = list(_names(folder))
    summary = {
        "schema": 1,
        "plan": plan.digest,
        "label": found.label,
        "artifact": identity.get("artifact"),
        "profile": identity.get("profile"),
        "cells": found.cells,
        "states": found.states,
        "files": {name: sha256_file(folder / name) for name in names},
    }
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                _add(tar, SUMMARY, canonical_json(summary))
                for name in names:
                    _add(tar, name, (folder / name).read_bytes())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(output)
        sync_directory(output.absolute().parent)
    finally:
        temporary.unlink(missing_ok=True)
    return _evidence(output, summary)


def read_evidence(path: Path) -> Evidence:
    """Check every member of a packed sweep; `VerificationError` if one is not what is said."""
    problems: list[Problem] = []
    try:
        with tarfile.open(path, mode="r:") as tar:
            first = tar.next()
            stream = tar.extractfile(first) if first is not None else None
            if first is None or stream is None or first.name != SUMMARY:
                raise ValueError(f"the first member is not {SUMMARY}")
            summary = json.loads(stream.read())
            if summary["schema"] != 1:
                raise ValueError(f"unknown schema {summary['schema']}")
            left = dict(summary["files"])
            while (member := tar.next()) is not None:
                problems += _check(tar, member, left)
            evidence = _evidence(path, summary)
    except (OSError, tarfile.TarError, ValueError, LookupError, TypeError) as error:
        raise VerificationError(f"{path} is no evidence: {error}") from None
    problems += [Problem(name, "it is missing") for name in left]
    if problems:
        raise VerificationError(f"{path} is damaged", problems=problems)
    return evidence


def _check(
    tar: tarfile.TarFile, member: tarfile.TarInfo, left: dict[str, str]
) -> Iterator[Problem]:
    expected = left.pop(member.name, None)
    stream = tar.extractfile(member) if member.isfile() else None
    if expected is None or stream is None:
        yield Problem(member.name, "it is not in the summary, or twice")
        return
    state = hashlib.sha256()
    while chunk := stream.read(1 << 20):
        state.update(chunk)
    found = "sha256:" + state.hexdigest()
    if found != expected:
        yield Problem(member.name, "its content differs", expected, found)


def _differences(folder: Path) -> list[Problem]:
    problems = []
    for name, result in read_ledger(folder / LEDGER_FILE).results.items():
        cell = folder / "cells" / name / f"attempt-{result.attempt}"
        for file, digest in (result.event.get("evidence") or {}).items():
            path = cell / file
            found = sha256_file(path) if path.is_file() else None
            if found != digest:
                problems.append(Problem(str(path), "it differs", digest, found or "no file"))
    return problems


def _names(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        hidden = any(part.startswith(".") for part in Path(name).parts)
        skipped = hidden or name == SUMMARY or name.endswith(_LEFT_OUT)
        if path.is_file() and not path.is_symlink() and not skipped:
            yield name


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    member.mode = 0o644
    tar.addfile(member, io.BytesIO(data))


def _evidence(path: Path, summary: dict[str, Any]) -> Evidence:
    return Evidence(
        path=path,
        digest=sha256_file(path),
        size=path.stat().st_size,
        plan=str(summary["plan"]),
        artifact=summary["artifact"],
        label=summary["label"],
        states=dict(summary["states"]),
        files=len(summary["files"]),
    )
