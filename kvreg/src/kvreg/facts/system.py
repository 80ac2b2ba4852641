"""Operating system, C library, processor, memory and control group."""

import os
import platform
import shlex

from kvreg.facts.machine import Machine
from kvreg.facts.model import Cgroup, Cpu, Memory, System

# Version 1 says "no limit" with the largest multiple of a page that a signed number can hold.
_NO_LIMIT = 1 << 60


def system(machine: Machine) -> System:
    """Names and versions of the operating system and C library."""
    return System(
        os=_os_name(machine),
        kernel=platform.release() or None,
        arch=platform.machine() or None,
        glibc=machine.attempt("system.glibc", lambda: _glibc(machine)),
        cpu=Cpu(_cpu_model(machine), os.cpu_count(), _usable()),
    )


def memory(machine: Machine) -> Memory:
    """Main memory, as ``/proc/meminfo`` has it."""
    sizes = {}
    for line in (machine.read("/proc/meminfo") or "").splitlines():
        key, _, value = line.partition(":")
        if value.split() and value.split()[0].isdigit():
            sizes[key] = int(value.split()[0]) * 1024
    if not sizes:
        machine.miss("memory", "/proc/meminfo cannot be read")
    return Memory(sizes.get("MemTotal"), sizes.get("MemAvailable"), sizes.get("SwapTotal"))


def cgroup(machine: Machine) -> Cgroup:
    """The tightest limits of the control groups that this process is in, versions 1 and 2."""
    paths: dict[str, str] = {}
    for line in (machine.read("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        for name in controllers.split(","):
            paths[name] = path
    if machine.read("/sys/fs/cgroup/cgroup.controllers") is not None:
        groups = _ancestors("/sys/fs/cgroup", paths.get("", "/"))
        memories = [_number(machine.read(f"{group}/memory.max")) for group in groups]
        quotas = [machine.read(f"{group}/cpu.max") or "" for group in groups]
        cpus = [_quota(*text.split()) for text in quotas if len(text.split()) == 2]
        return Cgroup(2, _least(memories), _least(cpus))
    if not machine.path("/sys/fs/cgroup/memory").is_dir():
        machine.miss("cgroup", "no control groups are mounted in /sys/fs/cgroup")
        return Cgroup(None, None, None)
    groups = _ancestors("/sys/fs/cgroup/memory", paths.get("memory", "/"))
    memories = [_number(machine.read(f"{group}/memory.limit_in_bytes")) for group in groups]
    cpus = []
    for group in _ancestors("/sys/fs/cgroup/cpu", paths.get("cpu", "/")):
        quota = machine.read(f"{group}/cpu.cfs_quota_us")
        period = machine.read(f"{group}/cpu.cfs_period_us")
        cpus.append(_quota(quota or "", period or ""))
    return Cgroup(1, _least(memories), _least(cpus))


def _os_name(machine: Machine) -> str | None:
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        for line in (machine.read(path) or "").splitlines():
            if line.startswith("PRETTY_NAME="):
                try:
                    words = shlex.split(line.removeprefix("PRETTY_NAME="))
                except ValueError:
                    continue
                if words:
                    return " ".join(words)
    machine.miss("system.os", "os-release has no PRETTY_NAME")
    return None


def _glibc(machine: Machine) -> str | None:
    text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    name, _, version = text.partition(" ")
    if name != "glibc" or not version:
        machine.miss("system.glibc", f"the C library says that it is {text or 'nothing'!r}")
        return None
    return version


def _cpu_model(machine: Machine) -> str | None:
    for line in (machine.read("/proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return None


def _usable() -> int | None:
    try:
        return len(os.sched_getaffinity(0))
    except OSError:
        return None


def _ancestors(mount: str, path: str) -> list[str]:
    # In a container the path may be that of the machine outside, of which only the mount is seen.
    parts = [part for part in path.split("/") if part and part != ".."]
    groups = ["/".join([mount, *parts[:count]]) for count in range(len(parts), 0, -1)]
    return [*groups, mount]


def _number(text: str | None) -> int | None:
    word = (text or "").strip()
    return int(word) if word.isdigit() and int(word) < _NO_LIMIT else None


def _quota(quota: str, period: str) -> float | None:
    if not quota.strip().isdigit() or not period.strip().isdigit() or int(period) == 0:
        return None
    return round(int(quota) / int(period), 3)


def _least(values: list[int | None] | list[float | None]) -> int | float | None:
    found = [value for value in values if value is not None]
    return min(found) if found else None
