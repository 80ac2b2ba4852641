"""What an acceptance has done so far, kept on the disk so that it goes on where it was stopped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

STATE, PAGE = "acceptance.json", "acceptance.md"
RESULTS = "results"
"""The folder below the work folder that is carried from session to session; home and caches not."""

PASSED, FAILED, SKIPPED, LEFT = "passed", "failed", "skipped", "left"


class StageFailed(Exception):
    """A stage did not show what it is there to show; the text says what was found."""


class NoTime(Exception):
    """What is left of the session would not do for this stage."""


@dataclass(frozen=True)
class Outcome:
    """How a stage ended. `seconds` of wall clock; `facts` are JSON-ready."""

    stage: str
    state: str
    reason: str = ""
    seconds: float = 0.0
    ended: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


class Record:
    """The outcomes of all stages, written after each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / STATE
        tree = json.loads(self.path.read_text("utf-8")) if self.path.exists() else {"stages": []}
        self.sessions: list[dict[str, Any]] = tree.get("sessions", [])
        self.outcomes = {item["stage"]: Outcome(**item) for item in tree["stages"]}

    def passed(self, stage: str) -> bool:
        """Whether a stage needs not run again."""
        return stage in self.outcomes and self.outcomes[stage].state == PASSED

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome; one that is there already is replaced, a failure only by a later try."""
        self.outcomes[outcome.stage] = outcome
        self.write()

    def write(self) -> None:
        """To the disk, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tree = {
            "schema": 1,
            "sessions": self.sessions,
            "stages": [asdict(item) for item in self.outcomes.values()],
        }
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(tree, file, indent=1, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)


class Commands:
    """Runs ``kvreg`` and other programs, each with a log of its own that everything is in."""

    def __init__(self, logs: Path, kvreg: Sequence[str], environment: Mapping[str, str]) -> None:
        self.logs, self.kvreg, self.environment = logs, list(kvreg), dict(environment)
        self.stage = "start"

    def run(
        self, *words: object, timeout: float = 600, code: int | None = 0, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end. Raises StageFailed for another exit status than `code`."""
        command = [str(word) for word in words]
        began = time.monotonic()
        try:
            ended = subprocess.run(
                command,
                env={**self.environment, **extra},
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired as error:
            self.log(command, f"{error.stdout or ''}\n{error.stderr or ''}\nno end in {timeout} s")
            raise StageFailed(f"{' '.join(command[:6])} … did not end in {timeout:.0f} s") from None
        seconds = time.monotonic() - began
        self.log(command, f"{ended.stdout}\n{ended.stderr}\n{ended.returncode} in {seconds:.1f} s")
        if code is not None and ended.returncode != code:
            tail = (ended.stderr or ended.stdout).strip()[-1500:]
            raise StageFailed(
                f"{' '.join(command[:6])} … ended with {ended.returncode}, not {code}: {tail}"
            )
        return ended

    def client(self, *words: object, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command of kvreg."""
        return self.run(*self.kvreg, *words, **options)

    def json(self, *words: object, **options: Any) -> Any:
        """Run a command of kvreg with ``--json``; its answer."""
        ended = self.client(*words, "--json", **options)
        try:
            return json.loads(ended.stdout)
        except ValueError:
            raise StageFailed(f"kvreg {words[0]} printed no JSON: {ended.stdout[-500:]}") from None

    def log(self, command: Sequence[str], text: str) -> None:
        """Add to the stage's log."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{self.stage}.log").open("a", encoding="utf-8") as file:
            file.write(f"$ {' '.join(command)}\n{text.strip()}\n\n")


def client_command(root: Path) -> tuple[list[str], dict[str, str]]:
    """How kvreg is run here, and what its environment needs: the installed one, else this source's.

    The source needs no installing: it is pure Python, and what it imports the host has. A folder
    named kvreg where the command runs is a package without an origin, not an installed one.
    """
    environment = dict(os.environ)
    source = root / "kvreg" / "src"
    probe = "import importlib.util as u; print(bool(getattr(u.find_spec('kvreg'), 'origin', None)))"
    found = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=False
    )
    if found.stdout.strip() != "True" and source.is_dir():
        paths = [str(source), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return [sys.executable, "-m", "kvreg"], environment


def save(results: Path, out: Path) -> list[Path]:
    """Copy what leaves the machine into `out`: record, page, evidence, and everything as one tar.

    Files stay few and flat, since places that hand files back may take no others.
    """
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for path in sorted(results.iterdir()):
        if path.name in (STATE, PAGE) or path.suffix == ".tar":
            written.append(Path(shutil.copy2(path, out / path.name)))
    target = out / "acceptance-results.tar.gz"
    with tarfile.open(target, "w:gz") as tar:
        tar.add(results, RESULTS)
    return [*written, target]


def restore(archive: Path, work: Path) -> None:
    """Unpack what `save` wrote on a machine that has nothing of it yet."""
    if (work / RESULTS / STATE).exists():
        return
    work.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        tar.extractall(work, filter="data")


def stamp() -> str:
    """Now, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Stage:
    """One step. `seconds` is what it may take, for the decision whether it begins.

    `needs` are stages without which it makes no sense. `again`: it runs in every session, because
    what it makes does not leave the machine.
    """

    name: str
    run: Callable[[Any], Mapping[str, Any]]
    seconds: float
    needs: tuple[str, ...] = ()
    again: bool = False
