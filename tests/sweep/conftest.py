"""A sweep against simulated servers: real processes, real HTTP, stated latency and memory."""

import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvreg.sweep.ledger import Ledger, read_ledger
from kvreg.sweep.presets import read_preset

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests" / "support"
SERVER = [sys.executable, str(SUPPORT / "openai_server.py")]

# Hosts that compile beside the tests are slow; a hang is a hang after this long all the same.
QUICK = {
    "start_s = 300": "start_s = 30",
    "stall_s = 60": "stall_s = 4",
    "stop_s = 20": "stop_s = 2",
    "idle_s = 30": "idle_s = 10",
    "warmup_waves = 1": "warmup_waves = 0",
}


def smoke_plan(**changes: str) -> str:
    """The smoke preset with the limits of a simulation, and `changes` of single lines by key."""
    text = read_preset("smoke").decode()
    for old, new in QUICK.items():
        assert old in text
        text = text.replace(old, new)
    for key, value in changes.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"{key} = ")]
        text = text.replace(line, f"{key} = {value}")
    return text


def stalled_s() -> float:
    """Seconds since boot in which some process waited for a processor; 0 where it is not told."""
    try:
        first = Path("/proc/pressure/cpu").read_text().splitlines()[0]
    except OSError:
        return 0.0
    return int(first.rpartition("total=")[2]) / 1e6


def hurry() -> None:
    """Get ahead of whatever else the machine does, where that is allowed: its noise is not ours."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -15)


@dataclass
class Bench:
    """A folder with a plan, simulated GPUs and scripted faults."""

    root: Path
    faults: dict[str, dict[str, Any]] = field(default_factory=dict)
    engine: tuple[str, ...] = tuple(SERVER)

    def __post_init__(self) -> None:
        self.gpus.mkdir(parents=True)
        self.write_plan(smoke_plan())

    @property
    def gpus(self) -> Path:
        return self.root / "gpus"

    @property
    def plan(self) -> Path:
        return self.root / "plan.toml"

    @property
    def out(self) -> Path:
        return self.root / "out"

    def write_plan(self, text: str) -> None:
        self.plan.write_text(text, encoding="utf-8")

    def command(self, name: str, *options: object, sampler: str | None = None) -> list[str]:
        monitor = [sys.executable, str(SUPPORT / "simulated_gpus.py"), str(self.gpus)]
        chosen = sampler or "command:" + shlex.join(monitor)
        return [
            *(sys.executable, "-m", "kvreg", "sweep", name, str(self.plan)),
            *("--out", str(self.out), "--engine-command", shlex.join(self.engine)),
            *("--sampler", chosen, *map(str, options)),
        ]

    @property
    def environment(self) -> dict[str, str]:
        path = self.root / "faults.json"
        path.write_text(json.dumps(self.faults))
        return {
            **os.environ,
            "KVREG_SIMULATED_GPUS": str(self.gpus),
            "KVREG_SIMULATED_FAULTS": str(path),
        }

    def start(self, *options: object) -> "subprocess.Popen[bytes]":
        """The runner as a process of its own, to be killed."""
        return subprocess.Popen(
            self.command("run", *options),
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=hurry,
        )

    def __call__(
        self, name: str, *options: object, code: int = 0, sampler: str | None = None
    ) -> Any:
        """Run a command to its end; its JSON."""
        result = subprocess.run(
            self.command(name, *options, "--json", sampler=sampler),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=hurry,
        )
        assert result.returncode == code, result.stdout + result.stderr
        self.errors = result.stderr
        return json.loads(result.stdout)

    def ledger(self) -> Ledger:
        return read_ledger(self.out)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "bench")


@pytest.fixture(scope="module")
def make_bench(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bench]:
    return lambda name: Bench(tmp_path_factory.mktemp(name) / "bench")


def alive(pattern: str) -> list[str]:
    """Command lines of living processes that mention `pattern`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if pattern in line:
            found.append(line)
    return found
