"""The file of a communication measurement: append-only lines, each complete and synced.

Line 1 is the design; every further line is one repetition with all its observations:

    {"event":"design","schema":1,"design":{…},"digest":"sha256:…","kvreg":"…","time":"…"}
    {"event":"repetition","repetition":0,"design":"sha256:…","session":"…","time":"…","seconds":…,
     "environment":{…},"samples":[{"bytes":…,"timer":"host","calls":1,"us":[…]}],"unavailable":{…}}

`us` are microseconds of one all-reduce, of each collective that of the slowest rank; `calls` is
how many all-reduces one observation is the mean of. A line that a killed session tore is cut off
by the next one.
"""

import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kvreg import __version__
from kvreg.errors import ContractError, NotFoundError, UsageError, VerificationError
from kvreg.model.canonical import canonical_json
from kvreg.nccl.design import SCHEMA, Design


@dataclass(frozen=True)
class Repetition:
    """One repetition: where it ran and what it saw (see the module)."""

    index: int
    environment: dict[str, Any]
    samples: list[dict[str, Any]]
    unavailable: dict[str, str]
    seconds: float | None = None


class Record:
    """A measurement's design and the repetitions that there are so far."""

    def __init__(self, path: Path, design: Design, *, simulated: bool = False) -> None:
        self.path, self.design, self.simulated = path, design, simulated
        self.repetitions: dict[int, Repetition] = {}
        self._session = str(uuid.uuid4())

    @property
    def environment(self) -> dict[str, Any]:
        """Where all repetitions ran; empty while there is none."""
        return next((rep.environment for rep in self.repetitions.values()), {})

    def missing(self) -> list[int]:
        """The repetitions that have not been measured."""
        return [i for i in range(self.design.repetitions) if i not in self.repetitions]

    def check_environment(self, environment: dict[str, Any]) -> None:
        """Raise `ContractError` when earlier repetitions ran somewhere that differs."""
        before = self.environment
        if not before or before == environment:
            return
        names = sorted(set(before) | set(environment))
        differ = [name for name in names if before.get(name) != environment.get(name)]
        raise ContractError(
            f"{self.path} was begun in another environment",
            expected="; ".join(f"{name} {before.get(name)}" for name in differ),
            found="; ".join(f"{name} {environment.get(name)}" for name in differ),
            remedy="go on where it was begun, or write another file with --out",
        )

    def add(self, repetition: Repetition) -> None:
        """Append a repetition; it is on the disk when this returns."""
        self._append(
            {
                "event": "repetition",
                "schema": SCHEMA,
                "repetition": repetition.index,
                "design": self.design.digest,
                "session": self._session,
                "time": _now(),
                "seconds": repetition.seconds,
                "environment": repetition.environment,
                "samples": repetition.samples,
                "unavailable": repetition.unavailable,
            }
        )
        self.repetitions[repetition.index] = repetition

    def begin(self) -> None:
        """Append the design, as the first line."""
        line = {
            "event": "design",
            "schema": SCHEMA,
            "design": self.design.to_dict(),
            "digest": self.design.digest,
            "kvreg": __version__,
            "time": _now(),
        }
        self._append(line | ({"simulated": True} if self.simulated else {}))

    def _append(self, line: dict[str, Any]) -> None:
        with self.path.open("ab") as stream:
            stream.write(canonical_json(line) + b"\n")
            stream.flush()
            os.fsync(stream.fileno())


@contextlib.contextmanager
def open_record(path: Path, design: Design) -> Iterator[Record]:
    """The record at `path`, to be added to: a new one, or the one that a session left there.

    Raises `UsageError` while another session adds to it, `ContractError` when it has another
    design, `VerificationError` when it is no such file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another session is writing {path}",
                remedy="wait for it, or choose another file with --out",
            ) from None
        _cut_torn_line(path)
        if path.stat().st_size == 0:
            record = Record(path, design)
            record.begin()
        else:
            record = read_record(path)
            if record.design != design:
                raise ContractError(
                    f"{path} has another design",
                    expected=json.dumps(record.design.to_dict()),
                    found=json.dumps(design.to_dict()),
                    remedy="ask for the same design, or write another file with --out",
                )
        yield record


def read_record(path: Path) -> Record:
    """Read what is there. A torn last line is left out.

    Raises `NotFoundError` when there is no such file, `VerificationError` when it is something
    else.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(f"no measurement at {path}", remedy="kvreg nccl makes one") from None
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    try:
        events = [json.loads(line) for line in lines]
        head = events[0]
        if head["event"] != "design" or head["schema"] != SCHEMA:
            raise ValueError(f"it begins with {head['event']!r}, schema {head['schema']}")
        design = Design.from_dict(head["design"])
        if design.digest != head["digest"]:
            raise ValueError(f"its design has digest {design.digest}, not {head['digest']}")
        record = Record(path, design, simulated=bool(head.get("simulated", False)))
        for event in events[1:]:
            if event["design"] != design.digest:
                raise ValueError(f"repetition {event['repetition']} is of another design")
            record.repetitions.setdefault(event["repetition"], _repetition(event))
    except (ValueError, KeyError, IndexError, TypeError, UsageError) as error:
        raise VerificationError(
            f"{path} is not a communication measurement",
            expected="lines as kvreg nccl writes them",
            found=f"{type(error).__name__}: {error}",
        ) from error
    return record


def _repetition(event: dict[str, Any]) -> Repetition:
    for sample in event["samples"]:
        if not all(isinstance(us, (int, float)) and us > 0 for us in sample["us"]):
            raise ValueError("an observation is not a positive number of microseconds")
    return Repetition(
        event["repetition"],
        event["environment"],
        event["samples"],
        event["unavailable"],
        event.get("seconds"),
    )


def _cut_torn_line(path: Path) -> None:
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as stream:
            stream.truncate(whole)
            os.fsync(stream.fileno())


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
