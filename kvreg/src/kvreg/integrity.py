"""Is a staged runtime still what was staged? Compared with RECORD and ``runtime.json``."""

import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvreg.cores import usable_cores
from kvreg.durability import is_settled, settle
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
    """Compare every staged file with its RECORD, on all cores; `quick` compares sizes alone.

    `progress` gets counts of bytes, one call at a time. Raises `VerificationError` when the
    runtime's own records (RECORD files, profile) are not those that were staged, as nothing can be
    compared then.
    """
    runtime.profile()
    expected = expected_rows(runtime)
    found = {
        f"{prefix}{path}": status
        for place, prefix in ((place, _prefix(place, runtime)) for place in runtime.places)
        for path, status in _walk(place)
    }
    likely, changed = [], []
    for path, row in expected.items():
        if (status := found.get(path)) is not None:
            regular = stat.S_ISREG(status.st_mode) and status.st_size == row.size
            (likely if regular else changed).append(path)
    if not quick:
        rows = {path: expected[path] for path in likely}
        changed += _differing(runtime.site, rows, progress or (lambda count: None))
    return IntegrityReport(
        runtime=runtime,
        files=len(expected),
        bytes=sum(row.size or 0 for row in expected.values()),
        added=tuple(sorted(found.keys() - expected.keys())),
        changed=tuple(sorted(changed)),
        missing=tuple(sorted(expected.keys() - found.keys())),
    )


def require_settled(runtime: Runtime) -> None:
    """Hash a runtime that a crash of the machine may have damaged, before it is used again.

    Does nothing but look otherwise. Raises `VerificationError` when it is damaged.
    """
    if is_settled(runtime.folder):
        return
    report = check_runtime(runtime)
    if report.missing or report.changed:
        raise _altered(runtime, "the machine crashed before all of it was on the disk")
    settle(runtime.folder)


def expected_rows(runtime: Runtime) -> dict[str, RecordRow]:
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
        # Rows are named by where their files lie from ``site``.
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


def _differing(
    site: Path, rows: Mapping[str, RecordRow], progress: Callable[[int], object]
) -> list[str]:
    """The paths of files whose bytes have another hash than their row."""
    # The largest first, so that no core is left alone with one at the end.
    pending = iter(sorted(rows, key=lambda path: -(rows[path].size or 0)))
    lock = threading.Lock()
    differing: list[str] = []

    def work() -> None:
        buffer = memoryview(bytearray(_CHUNK))
        while True:
            with lock:
                path = next(pending, None)
            if path is None:
                return
            same = _has_hash(site / path, rows[path], buffer)
            with lock:
                progress(rows[path].size or 0)
                if not same:
                    differing.append(path)

    with ThreadPoolExecutor(usable_cores()) as pool:
        for future in [pool.submit(work) for _ in range(usable_cores())]:
            future.result()
    return differing


def _has_hash(path: Path, row: RecordRow, buffer: memoryview) -> bool:
    state = hashlib.new(row.algorithm or "sha256")
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        # Removed, replaced by a link or made unreadable meanwhile.
        return False
    try:
        while count := os.readv(handle, [buffer]):
            state.update(buffer[:count])
    finally:
        os.close(handle)
    return state.digest() == row.digest


def _altered(runtime: Runtime, what: str) -> VerificationError:
    return VerificationError(
        f"the staged runtime of {runtime.profile_name} is not what was staged: {what}",
        found=str(runtime.site),
        remedy=f"pull it again: kvreg pull {runtime.profile_name} --registry REF",
    )
