"""One session of a sweep: its directory, identity, lock, ledger, sampler and load generator."""

import fcntl
import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from kvreg import __version__
from kvreg.errors import ContractError, Problem, UsageError, VerificationError
from kvreg.model.canonical import canonical_json
from kvreg.sweep.cache import CompileCache
from kvreg.sweep.cells import Cell
from kvreg.sweep.devices import Devices
from kvreg.sweep.engine import Engine
from kvreg.sweep.generator import Generator
from kvreg.sweep.ledger import LEDGER_FILE, EventLog, LedgerWriter, Result, now, sync_directory
from kvreg.sweep.plan import Plan, parse_plan
from kvreg.sweep.reading import Setting
from kvreg.sweep.sampling import Sampler, open_sampler, visible_gpus
from kvreg.sweep.server import PROCESS_FILE, await_gone

PLAN_FILE = "plan.toml"
IDENTITY_FILE = "identity.json"
FACTS_FILE = "facts.json"
CELLS = "cells"
GATES = "gates"


@dataclass(frozen=True)
class Choices:
    """What the caller chose for a session."""

    resume: bool = False
    sampler: str = "auto"
    caches: Path | None = None


class Session:
    """A sweep directory that this process alone writes to. Use it as a context manager."""

    def __init__(self, folder: Path, raw_plan: bytes, engine: Engine, choices: Choices) -> None:
        self.folder = folder
        self.raw_plan = raw_plan
        self.plan: Plan = parse_plan(raw_plan)
        self.engine = engine
        self.choices = choices
        self.id = str(uuid.uuid4())
        self.generator = Generator()
        self.ledger: EventLog
        self.sampler: Sampler
        self.devices: Devices
        self._lock: int | None = None

    def __enter__(self) -> "Session":
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(
        self,
        cells: Sequence[Cell],
        done: Callable[[Cell, Result], object],
        more: Callable[[], bool] = lambda: True,
    ) -> None:
        """Run cells: by a subclass, which knows where."""
        raise NotImplementedError

    def _open(self) -> None:
        self.engine.check(self.plan)
        facts = collect_facts()
        self._prepare(facts)
        self._equip(facts)

    def _prepare(self, facts: Any) -> None:
        """Make the directory ours, and hold it against this plan and engine."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        ledger = self.folder / LEDGER_FILE
        begun = ledger.exists() and ledger.stat().st_size > 0
        if begun and not self.choices.resume:
            raise UsageError(
                f"a sweep has begun in {self.folder}",
                remedy="go on with --resume, or choose another directory",
            )
        self._settle(facts)
        self.ledger = LedgerWriter(ledger, self.id)

    def _equip(self, facts: Any) -> None:
        """Start what measuring needs, and say so in the ledger."""
        self._await_earlier_servers()
        self.generator.start()
        visible = visible_gpus(self.engine.environment)
        self.sampler = open_sampler(self.choices.sampler, visible)
        self.devices = Devices(self.sampler, self.plan.limits)
        self.ledger.append(
            "session",
            kvreg=__version__,
            engine=self.engine.identity(),
            facts=facts.digest if facts else None,
            sampler=self.sampler.kind,
            idle_mib={str(gpu): level for gpu, level in self.devices.idle.items()},
        )

    def close(self) -> None:
        """End what the session started and let others at the directory."""
        self.generator.close()
        if hasattr(self, "sampler"):
            self.sampler.close()
        if hasattr(self, "ledger"):
            self.ledger.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def cache(self, model: str, tp: int, settings: Mapping[str, Setting]) -> CompileCache:
        """The compile cache of a server."""
        root = self.choices.caches or self.folder.parent / f"{self.folder.name}-caches"
        key = self.engine.cache_key(self.plan, model, tp, settings)
        return CompileCache(root.absolute(), key)

    def _take_lock(self) -> None:
        self._lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another process runs the sweep in {self.folder}",
                remedy="wait for it, or give each shard a directory of its own",
            ) from None

    def _settle(self, facts: Any) -> None:
        """Write plan and identity, or hold them against those of the earlier sessions."""
        identity = {
            "schema": 1,
            "plan": self.plan.digest,
            "artifact": self.engine.artifact,
            "profile": self.engine.profile,
            "facts": facts.digest if facts else None,
            "engine": self.engine.identity(),
            "kvreg": __version__,
            "created": now(),
        }
        path = self.folder / IDENTITY_FILE
        if path.exists():
            _require_same(path, identity)
            return
        if facts is not None:
            tree = json.dumps(facts.to_dict(), indent=2, ensure_ascii=False) + "\n"
            write_file(self.folder / FACTS_FILE, tree.encode())
        write_file(self.folder / PLAN_FILE, self.raw_plan)
        # Last, so that a directory with an identity has everything else.
        write_file(path, json.dumps(identity, indent=2, ensure_ascii=False).encode() + b"\n")

    def _await_earlier_servers(self) -> None:
        """Servers of a session that was killed are being stopped by their keepers: wait."""
        limits = self.plan.limits
        patience = 2 * limits.stop_s + limits.idle_s
        started = {
            (event["cell"], event["attempt"])
            for event in self.ledger.events
            if event["event"] == "started"
        }
        finished = {
            (event["cell"], event["attempt"])
            for event in self.ledger.events
            if event["event"] == "finished"
        }
        records = [
            self.folder / CELLS / cell / f"attempt-{attempt}" / PROCESS_FILE
            for cell, attempt in started - finished
        ]
        records += (self.folder / GATES).glob(f"*/attempt-*/{PROCESS_FILE}")
        for record in records:
            if not await_gone(record, patience):
                raise UsageError(
                    "a server of an earlier session still runs",
                    found=record.read_text(encoding="utf-8"),
                    remedy="end that process, then resume",
                )


def collect_facts() -> Any:
    """The host's facts."""
    from kvreg.facts import collect

    return collect()


def read_identity(folder: Path) -> dict[str, Any]:
    """``identity.json`` of a sweep directory; `VerificationError` if it cannot be read."""
    try:
        tree = json.loads((folder / IDENTITY_FILE).read_bytes())
        if tree["schema"] != 1:
            raise ValueError(f"schema {tree['schema']}")
        return dict(tree)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise VerificationError(
            f"{folder} is no sweep directory: {error}",
            expected="a directory that kvreg sweep run made",
        ) from None


def write_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def _require_same(path: Path, identity: Mapping[str, Any]) -> None:
    """A directory holds one sweep: one plan, one runtime, one engine."""
    found = read_identity(path.parent)
    problems = [
        Problem(str(path), f"{key} differs", expected=_text(found.get(key)), found=_text(wanted))
        for key, wanted in identity.items()
        if key in ("plan", "artifact", "profile", "engine") and found.get(key) != wanted
    ]
    if problems:
        raise ContractError(
            "the directory is of another sweep",
            problems=problems,
            remedy="resume with the same plan and runtime, or choose another directory",
        )


def _text(value: object) -> str:
    return canonical_json(value).decode()
