"""Is a staged runtime still what was staged? Compared with RECORD and ``runtime.json``."""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvreg.errors import VerificationError
from kvreg.runtime import Runtime
from kvreg.wheel.record import RecordRow, read_record

_CHUNK = 1 << 20


@dataclass(frozen=True)
class IntegrityReport:
    """Paths relative to ``site``, those of the overlay as ``../overlay/...``.

    `files` and `bytes` count what was compared.
    """

    runtime: Runtime
    files: int
    bytes: int
    added: tuple[str, ...]
    changed: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not (self.added or self.changed or self.missing)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-ready data."""
        return {
            "ok": self.ok,
            "profile": self.runtime.profile_name,
            "profile_digest": self.runtime.profile_digest,
            "manifest_digest": self.runtime.manifest_digest,
            "files": self.files,
            "bytes": self.bytes,
            "added": list(self.added),
            "changed": list(self.changed),
            "missing": list(self.missing),
        }


def check_runtime(
    runtime: Runtime, *, quick: bool = False, progress: Callable[[int], object] | None = None
) -> IntegrityReport:
    """Compare every staged file with its RECORD; `quick` compares sizes instead of hashes.

    `progress` gets counts of bytes. Raises `VerificationError` when the runtime's own records
    (RECORD files, profile) are not those that were staged, as nothing can be compared then.
    """
    runtime.profile()
    expected = _expected(runtime)
    found = {
        f"{_prefix(place, runtime)}{path}": status
        for place in runtime.places
        for path, status in _walk(place)
    }
    report = progress or (lambda count: None)
    changed = [
        path
        for path, row in expected.items()
        if path in found and not _same(runtime.site / path, found[path], row, quick, report)
    ]
    return IntegrityReport(
        runtime=runtime,
        files=len(expected),
        bytes=sum(row.size or 0 for row in expected.values()),
        added=tuple(sorted(found.keys() - expected.keys())),
        changed=tuple(sorted(changed)),
        missing=tuple(sorted(expected.keys() - found.keys())),
    )


def _expected(runtime: Runtime) -> dict[str, RecordRow]:
    """A row for every file, RECORD files included, which ``runtime.json`` vouches for."""
    rows: dict[str, RecordRow] = {}
    for wheel in runtime.wheels:
        prefix = _prefix(runtime.place(wheel.role), runtime)
        try:
            raw = (runtime.site / f"{prefix}{wheel.record}").read_bytes()
        except OSError:
            raise _altered(runtime, f"{wheel.record} is missing") from None
        digest = hashlib.sha256(raw)
        if digest.hexdigest() != wheel.record_sha256:
            raise _altered(runtime, f"{wheel.record} was changed")
        own, problems = read_record(raw, wheel.record)
        if problems:
            raise _altered(runtime, f"{wheel.record} cannot be read")
        rows |= {f"{prefix}{path}": row for path, row in own.items()}
        row = RecordRow(wheel.record, "sha256", digest.digest(), len(raw))
        rows[f"{prefix}{wheel.record}"] = row
    if len(rows) != runtime.files:
        raise _altered(runtime, f"RECORD lists {len(rows)} files, runtime.json {runtime.files}")
    return rows


def _prefix(place: Path, runtime: Runtime) -> str:
    """What leads from ``site`` to a place."""
    return "" if place == runtime.site else f"../{place.name}/"


def _walk(place: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below a place that is not a directory, links not followed."""
    pending = [""]
    while pending:
        prefix = pending.pop()
        with os.scandir(place / prefix) as entries:
            for entry in entries:
                path = f"{prefix}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    pending.append(f"{path}/")
                else:
                    yield path, entry.stat(follow_symlinks=False)


def _same(
    path: Path, status: os.stat_result, row: RecordRow, quick: bool, report: Callable[[int], object]
) -> bool:
    if not stat.S_ISREG(status.st_mode) or status.st_size != row.size:
        return False
    if quick:
        return True
    state = hashlib.new(row.algorithm or "sha256")
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            state.update(chunk)
            report(len(chunk))
    return state.digest() == row.digest


def _altered(runtime: Runtime, what: str) -> VerificationError:
    return VerificationError(
        f"the staged runtime of {runtime.profile_name} is not what was staged: {what}",
        found=str(runtime.site),
        remedy=f"pull it again: kvreg pull {runtime.profile_name} --registry REF",
    )
