"""The ledger: ``ledger.jsonl``, append-only, fsynced, one canonical JSON object a line.

Every line has ``schema``, ``event``, ``time`` and ``session``. Events:

============  =================================================================================
``started``   an attempt of a cell: ``cell``, ``attempt``, ``cache`` (its key, and whether warm)
``finished``  its end: ``cell``, ``attempt``, ``state``, ``reason``, ``metrics``, ``timing``
``gate``      a model was loaded and asked once: ``key``, ``model``, ``tp``, ``state``, ``reason``
``pilot``     how many requests a group of cells sends: ``group``, ``requests``, ``evidence``
============  =================================================================================

A start without an end is a broken attempt and stays. The last finished attempt of a cell is its
result. A last line that was torn by a crash is ignored, and cut off when the ledger is written
to again. Events of other names are left to their readers.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvreg.errors import VerificationError
from kvreg.model.canonical import canonical_json

SCHEMA = 1
LEDGER_FILE = "ledger.jsonl"

MEASURED = "MEASURED"
RESOURCE_GATED = "RESOURCE_GATED"
INCOMPATIBLE = "INCOMPATIBLE"
FAILED = "FAILED"
STATES = (MEASURED, RESOURCE_GATED, INCOMPATIBLE, FAILED)

COMPATIBLE = "COMPATIBLE"
"""A gate that was passed; the others end in one of `STATES`."""


@dataclass(frozen=True)
class Result:
    """The last finished attempt of a cell.

    `metrics` are of the load generator and the sampler (milliseconds, tokens per second, MiB);
    `timing` are seconds. `event` is the whole record.
    """

    cell: str
    state: str
    reason: str | None
    metrics: Mapping[str, Any] = field(hash=False)
    timing: Mapping[str, float] = field(hash=False)
    attempt: int
    time: str
    session: str
    event: Mapping[str, Any] = field(hash=False, repr=False)


@dataclass(frozen=True)
class Ledger:
    """What a ledger says. `broken` counts the attempts of a cell that never finished."""

    events: tuple[Mapping[str, Any], ...] = field(hash=False, default=())
    results: Mapping[str, Result] = field(hash=False, default_factory=dict)
    attempts: Mapping[str, int] = field(hash=False, default_factory=dict)
    broken: Mapping[str, int] = field(hash=False, default_factory=dict)
    gates: Mapping[str, Mapping[str, Any]] = field(hash=False, default_factory=dict)
    pilots: Mapping[tuple[str, str, int], Mapping[str, Any]] = field(
        hash=False, default_factory=dict
    )
    torn: bool = False


def read_ledger(path: Path) -> Ledger:
    """Read a ledger, or that of a sweep directory; one that does not exist yet is empty.

    Raises `VerificationError` for a line, other than a torn last one, that is no event.
    """
    path = path / LEDGER_FILE if path.is_dir() else path
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return Ledger()
    whole, torn = _whole(raw)
    return _ledger(tuple(_events(whole, path)), torn)


class EventLog:
    """Events in order; a subclass keeps each of them somewhere before it counts."""

    def __init__(self, session: str, events: Iterable[Mapping[str, Any]] = ()) -> None:
        self.session = session
        self.events = list(events)

    def append(self, event: str, **fields: Any) -> Mapping[str, Any]:
        """Record an event of this session."""
        record = {
            "schema": SCHEMA,
            "event": event,
            "time": now(),
            "session": self.session,
            **fields,
        }
        return self.record(record)

    def record(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """Record an event that is complete."""
        self.events.append(event)
        return event

    def result(self, event: Mapping[str, Any]) -> Result:
        """The result that a ``finished`` event says."""
        return _result(event)

    def read(self) -> Ledger:
        """What the events say now."""
        return _ledger(tuple(self.events), False)

    def close(self) -> None:
        """Release what it is kept in."""


class LedgerWriter(EventLog):
    """Appends events to a file; each is on the disk when `append` returns.

    A directory has one writer at a time: the caller holds its lock.
    """

    def __init__(self, path: Path, session: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        whole, torn = _whole(path.read_bytes())
        super().__init__(session, _events(whole, path))
        if torn:
            os.ftruncate(self._file, len(whole))
        os.fsync(self._file)
        if new:
            sync_directory(path.parent)

    def record(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write one event and wait until it is on the disk."""
        line = canonical_json(event) + b"\n"
        written = 0
        while written < len(line):
            written += os.write(self._file, line[written:])
        os.fsync(self._file)
        return super().record(event)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def now() -> str:
    """The time in UTC, to the millisecond."""
    seconds, milliseconds = divmod(time.time_ns() // 1_000_000, 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{milliseconds:03d}Z"


def sync_directory(path: Path) -> None:
    """Wait until a directory's entries are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _whole(raw: bytes) -> tuple[bytes, bool]:
    """The lines that were written to their end, and whether there was another one."""
    end = raw.rfind(b"\n") + 1
    return raw[:end], end < len(raw)


def _events(raw: bytes, path: Path) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(raw.splitlines(), start=1):
        try:
            event = json.loads(line)
            if not isinstance(event, dict) or event["schema"] != SCHEMA:
                raise ValueError("not an event of schema 1")
            str(event["event"])
            if event["event"] == "finished" and event["state"] not in STATES:
                raise ValueError(f"unknown state {event['state']!r}")
            if event["event"] in ("started", "finished"):
                str(event["cell"]), int(event["attempt"])
        except (ValueError, LookupError, TypeError) as error:
            raise VerificationError(
                f"{path}: line {number} is damaged: {error}",
                expected="one event of the ledger a line",
                found=line[:100].decode("utf-8", "replace"),
                remedy="take the ledger from a copy of the sweep directory",
            ) from None
        yield event


def _ledger(events: tuple[Mapping[str, Any], ...], torn: bool) -> Ledger:
    results: dict[str, Result] = {}
    attempts: dict[str, int] = {}
    open_attempts: dict[str, set[int]] = {}
    gates: dict[str, Mapping[str, Any]] = {}
    pilots: dict[tuple[str, str, int], Mapping[str, Any]] = {}
    for event in events:
        kind = event["event"]
        if kind == "started":
            cell, attempt = event["cell"], int(event["attempt"])
            attempts[cell] = max(attempts.get(cell, 0), attempt)
            open_attempts.setdefault(cell, set()).add(attempt)
        elif kind == "finished":
            cell, attempt = event["cell"], int(event["attempt"])
            attempts[cell] = max(attempts.get(cell, 0), attempt)
            open_attempts.get(cell, set()).discard(attempt)
            results[cell] = _result(event)
        elif kind == "gate":
            gates[str(event["key"])] = event
        elif kind == "pilot":
            model, workload, concurrency = event["group"]
            pilots[(model, workload, int(concurrency))] = event
    broken = {cell: len(left) for cell, left in open_attempts.items() if left}
    return Ledger(events, results, attempts, broken, gates, pilots, torn)


def _result(event: Mapping[str, Any]) -> Result:
    return Result(
        cell=event["cell"],
        state=event["state"],
        reason=event.get("reason"),
        metrics=event.get("metrics") or {},
        timing=event.get("timing") or {},
        attempt=int(event["attempt"]),
        time=str(event.get("time", "")),
        session=str(event.get("session", "")),
        event=event,
    )
