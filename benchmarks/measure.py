"""What the benchmarks share: processes that are measured, rounds, spreads."""

import os
import platform
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

INSTALLED = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
"""The environment of a program as it runs when it is installed: its compiled files are there."""


@dataclass(frozen=True)
class Run:
    """One process: seconds it took, CPU seconds it used, bytes that it held at most."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Command:
    """What to run, and where."""

    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    cwd: Path | None = None


class _Sampler(threading.Thread):
    """The most memory that a process has held, looked at ten times a second.

    Not ``ru_maxrss``: a process inherits that from the one that starts it.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._status = Path(f"/proc/{pid}/status")
        self.peak = 0
        self.start()

    def run(self) -> None:
        while True:
            try:
                found = re.search(r"VmHWM:\s+(\d+) kB", self._status.read_text())
            except OSError:
                return
            if found is None:
                # It has ended and waits to be waited for.
                return
            self.peak = int(found[1]) * 1024
            time.sleep(0.1)


def timed(commands: Sequence[Command], output: Path) -> Run:
    """Run commands one after another; the program ends when one fails."""
    cpu, peak = 0.0, 0
    begun = time.monotonic()
    for command in commands:
        with output.open("w+") as stream:
            process = subprocess.Popen(
                command.argv, cwd=command.cwd, env=command.env, stdout=stream, stderr=stream
            )
            sampler = _Sampler(process.pid)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode != 0:
                stream.seek(0)
                sys.exit(f"{' '.join(command.argv)[:200]} failed:\n{stream.read()[-2000:]}")
        cpu += usage.ru_utime + usage.ru_stime
        peak = max(peak, sampler.peak)
    return Run(time.monotonic() - begun, cpu, peak)


def interleaved(
    contenders: Sequence[str], rounds: int, run: Callable[[str, int], Run], seed: int = 1
) -> dict[str, list[Run]]:
    """Rounds of all contenders, in an order that changes from round to round."""
    order = random.Random(seed)
    runs: dict[str, list[Run]] = {name: [] for name in contenders}
    for number in range(rounds):
        shuffled = list(contenders)
        order.shuffle(shuffled)
        for name in shuffled:
            runs[name].append(run(name, number))
    return runs


def median(runs: Sequence[Run]) -> float:
    """Seconds."""
    return statistics.median(run.seconds for run in runs)


def ratios(runs: Sequence[Run], others: Sequence[Run]) -> list[float]:
    """The one's time over the other's, round by round."""
    return [one.seconds / other.seconds for one, other in zip(runs, others, strict=True)]


def spread(values: Sequence[float]) -> str:
    """Median, least and most."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def machine() -> dict[str, object]:
    """The machine that was measured on."""
    return {"cores": len(os.sched_getaffinity(0)), "system": platform.platform()}
