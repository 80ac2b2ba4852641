"""What the collectors look at: files below a root, the environment, and other programs.

A collector asks a `Machine` and never the system itself, so that a test can put a tree of files in
the place of ``/proc`` and ``/sys``. It also keeps the reasons why something could not be found out.
"""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from kvreg.facts.model import Unknown

Value = TypeVar("Value")

_LONGEST = 1 << 20
_TIMEOUT = 20.0


def run_program(arguments: Sequence[str]) -> str:
    """The standard output of a program; `OSError` when it is not there, fails or hangs."""
    try:
        done = subprocess.run(
            list(arguments),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"{arguments[0]} gave no answer in {_TIMEOUT:.0f} s") from None
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise OSError(f"{arguments[0]} failed: {said[-1] if said else done.returncode}")
    return done.stdout


@dataclass
class Machine:
    """The machine that facts are collected of. `unknown` fills up while collectors ask."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    run: Callable[[Sequence[str]], str] = run_program
    unknown: list[Unknown] = field(default_factory=list)

    def path(self, path: str) -> Path:
        """An absolute path of the machine, below the root."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str | None:
        """The text of a small file; None when it is not there or not readable."""
        try:
            with self.path(path).open(encoding="utf-8", errors="replace") as file:
                return file.read(_LONGEST)
        except OSError:
            return None

    def miss(self, fact: str, reason: str) -> None:
        """Note why a fact is unknown."""
        self.unknown.append(Unknown(fact, reason))

    def attempt(self, fact: str, collect: Callable[[], Value]) -> Value | None:
        """The value, or None and a reason: a host that is strange in one way has other facts."""
        try:
            return collect()
        except Exception as error:
            self.miss(fact, f"{type(error).__name__}: {error}")
            return None
