"""What the stages have in common: the caller's choices, commands, folders and the time left."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acceptance.shape import write_model
from acceptance.state import RESULTS, Commands

INSIDE = Path(__file__).parent / "inside.py"


@dataclass(frozen=True)
class Choices:
    """What the caller asked for. Times in seconds, memory in MiB."""

    profile: str
    probe: str | None
    refused: tuple[str, ...]
    work: Path
    registry: str | None
    evidence_registry: str | None
    tp: tuple[int, ...] | None
    concurrency: tuple[int, ...]
    repetitions: int
    measure_s: float
    engine_command: str | None
    sampler: str
    low_boundary: int
    options: tuple[str, ...]


class Acceptance:
    """The stages' common ground: choices, commands, folders, and how much time is left."""

    def __init__(self, choices: Choices, commands: Commands, deadline: float) -> None:
        self.choices, self.commands, self.deadline = choices, commands, deadline
        self.results = choices.work / RESULTS
        self.home = choices.work / "home"
        self.caches = choices.work / "caches"

    @property
    def left(self) -> float:
        """Seconds until the session must be over."""
        return self.deadline - time.monotonic()

    def facts(self) -> dict[str, Any]:
        """The host's facts as the first stage wrote them."""
        return dict(json.loads((self.results / "facts.json").read_bytes()))

    def degrees(self) -> list[int]:
        """The tensor-parallel degrees: those asked for, else 1, and 2 where there are two GPUs."""
        if self.choices.tp:
            return list(self.choices.tp)
        gpus = [gpu for gpu in self.facts().get("gpus") or [] if gpu.get("visible", True)]
        return [1, 2] if len(gpus) >= 2 else [1]

    def gpu_mib(self) -> int | None:
        """Memory of the smallest visible GPU, None where there is none."""
        gpus = [gpu for gpu in self.facts().get("gpus") or [] if gpu.get("visible", True)]
        return min((gpu["memory_mib"] for gpu in gpus), default=None)

    def utilization(self) -> float:
        """The share of a GPU's memory for the engine: enough for the shape, and no minute of it."""
        return 0.85 if (self.gpu_mib() or 0) < 40_000 else 0.3

    def model(self) -> tuple[Path, Path]:
        """Configuration and tokenizer, made where they are not there yet."""
        return write_model(self.choices.work, "float16")

    def engine(self) -> list[str]:
        """How sweeps reach the engine."""
        command = self.choices.engine_command
        chosen = ["--engine-command", command] if command else ["--profile", self.choices.profile]
        return [*chosen, "--sampler", self.choices.sampler, "--caches", str(self.caches)]


def inside(
    a: Acceptance, what: str, *words: object, timeout: float, **extra: str
) -> dict[str, Any]:
    """Run a part of ``inside.py`` in the activated runtime; its answer."""
    command = [sys.executable, INSIDE, what, a.choices.profile, *words]
    ended = a.commands.run(*command, timeout=timeout, **extra)
    return dict(json.loads(ended.stdout.strip().splitlines()[-1]))


def picked(tree: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Some keys of a table, where it has them."""
    return {name: tree[name] for name in names if name in tree}


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
