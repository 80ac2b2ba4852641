"""What a running container costs: CPU time and memory, from its control group.

The engine's own statistics come once a second and cost a request each, so the control group's
files are read where they can be (same machine, same process namespace) and the statistics are the
way out elsewhere. Both ways end with the container: its group disappears with its last process,
so the last reading before that counts.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import requests
from docker.errors import DockerException

INTERVAL = 0.5
"""Seconds between two readings of the control group's files."""


@dataclass(frozen=True)
class Usage:
    """One reading, or several joined. Seconds and bytes; see `builder.engine.RunResult`."""

    cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0
    high_water_bytes: int | None = None
    oom_kills: int = 0

    def join(self, later: Usage) -> Usage:
        """Both readings in one: every figure only ever grows."""
        marks = [m for m in (self.high_water_bytes, later.high_water_bytes) if m is not None]
        return Usage(
            max(self.cpu_seconds, later.cpu_seconds),
            max(self.peak_memory_bytes, later.peak_memory_bytes),
            max(marks, default=None),
            max(self.oom_kills, later.oom_kills),
        )


@dataclass(frozen=True)
class ControlGroup:
    """The folders of a container's control group: one and the same in version 2."""

    version: int
    cpu: Path
    memory: Path

    def read(self) -> Usage:
        """The counters now. Raises OSError once the group is gone."""
        if self.version == 2:
            statistics = _pairs(self.memory / "memory.stat")
            peak = self.memory / "memory.peak"  # since Linux 5.19
            return Usage(
                _pairs(self.cpu / "cpu.stat").get("usage_usec", 0) / 1e6,
                statistics.get("anon", 0),
                int(peak.read_text()) if peak.exists() else None,
                _pairs(self.memory / "memory.events").get("oom_kill", 0),
            )
        statistics = _pairs(self.memory / "memory.stat")
        return Usage(
            int((self.cpu / "cpuacct.usage").read_text()) / 1e9,
            statistics.get("total_rss", statistics.get("rss", 0)),
            int((self.memory / "memory.max_usage_in_bytes").read_text()),
            _pairs(self.memory / "memory.oom_control").get("oom_kill", 0),
        )


def find_group(
    pid: int, container_id: str, proc: Path = Path("/proc"), root: Path = Path("/sys/fs/cgroup")
) -> ControlGroup | None:
    """The control group of a container's first process, or None where it cannot be read.

    The group's path must hold the container's id: `pid` is the engine's, and on another machine
    or in another namespace the same number is somebody else's process.
    """
    try:
        text = (proc / str(pid) / "cgroup").read_text()
    except OSError:
        return None
    places = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            places[controller] = path.lstrip("/")
    if "memory" in places and "cpuacct" in places:
        group = ControlGroup(
            1, root / "cpuacct" / places["cpuacct"], root / "memory" / places["memory"]
        )
    elif "" in places:
        group = ControlGroup(2, root / places[""], root / places[""])
    else:
        return None
    if container_id not in str(group.memory):
        return None
    try:
        group.read()
    except (OSError, ValueError):
        return None
    return group


def from_statistics(sample: dict[str, Any]) -> Usage:
    """Usage from one sample of the engine's statistics; an empty one gives zeros."""
    memory = sample.get("memory_stats") or {}
    detail = memory.get("stats") or {}
    anonymous = next((detail[k] for k in ("total_rss", "rss", "anon") if k in detail), None)
    if anonymous is None:  # Podman names no parts
        anonymous = memory.get("usage", 0)
    nanoseconds = ((sample.get("cpu_stats") or {}).get("cpu_usage") or {}).get("total_usage", 0)
    return Usage(nanoseconds / 1e9, anonymous, memory.get("max_usage") or None)


def _pairs(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in path.read_text().splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


class UsageSampler:
    """Reads a started container's usage in a thread of its own until the block ends."""

    def __init__(self, container: Any) -> None:
        self._container = container
        self._stop = threading.Event()
        self._usage = Usage()
        self._thread = threading.Thread(target=self._work, name="usage", daemon=True)

    @property
    def usage(self) -> Usage:
        """What has been seen so far."""
        return replace(self._usage)

    def __enter__(self) -> UsageSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _work(self) -> None:
        # A measurement that fails must not fail the build that it measures.
        with suppress(OSError, ValueError, DockerException, requests.RequestException):
            self._container.reload()
            pid = int(self._container.attrs["State"].get("Pid") or 0)
            group = find_group(pid, self._container.id) if pid else None
            if group is not None:
                self._read(group)
            else:
                self._ask()

    def _read(self, group: ControlGroup) -> None:
        while True:
            self._usage = self._usage.join(group.read())
            if self._stop.wait(INTERVAL):
                return

    def _ask(self) -> None:
        for sample in self._container.stats(stream=True, decode=True):
            self._usage = self._usage.join(from_statistics(sample))
            if self._stop.is_set():
                return
