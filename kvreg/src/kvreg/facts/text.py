"""Facts for people."""

from collections.abc import Iterator

from kvreg.console import human_bytes
from kvreg.facts.model import Gpu, HostFacts

_UNKNOWN = "unknown"


def text(facts: HostFacts) -> str:
    """One line a fact, and at the end what is unknown and why."""
    rows = [*_software(facts), *_graphics(facts), *_resources(facts)]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    if facts.unknown:
        lines += ["", "unknown:"]
        lines += [f"  {item.fact}: {item.reason}" for item in facts.unknown]
    return "\n".join(lines)


def _software(facts: HostFacts) -> Iterator[tuple[str, str]]:
    if system := facts.system:
        yield "os", f"{_or(system.os)}, Linux {_or(system.kernel)}, {_or(system.arch)}"
        yield "glibc", _or(system.glibc)
        if system.cpu:
            cpu = system.cpu
            yield "cpu", f"{_or(cpu.model)}, {_or(cpu.usable)} of {_or(cpu.count)} usable"
    if library := facts.libstdcxx:
        versions = f"GLIBCXX_{_or(library.glibcxx)}, CXXABI_{_or(library.cxxabi)}"
        yield "libstdc++", f"{versions} ({library.path}, {library.origin})"
    if python := facts.python:
        yield "python", f"{_or(python.version)} {_or(python.tag)} ({_or(python.executable)})"
    torch = facts.torch
    if torch is None:
        yield "torch", _absent(facts, "torch")
    else:
        abi = {True: "new C++ ABI", False: "old C++ ABI", None: "C++ ABI unknown"}[torch.cxx11_abi]
        code = " ".join(torch.compute_capabilities or ()) or "none"
        yield "torch", f"{_or(torch.version)}, CUDA {torch.cuda or 'none'}, {abi} ({torch.path})"
        yield "torch code", f"compute capabilities {code}"
    if nccl := facts.nccl:
        if nccl.loaded:
            yield "nccl", f"{_or(nccl.loaded.version)} ({nccl.loaded.path}; {nccl.reason})"
        else:
            yield "nccl", f"none: {nccl.reason}"
        for file in nccl.candidates:
            if file != nccl.loaded:
                yield "", f"not loaded: {_or(file.version)} ({file.path}, {file.origin})"
    if facts.packages is not None:
        yield "packages", str(len(facts.packages))


def _graphics(facts: HostFacts) -> Iterator[tuple[str, str]]:
    driver = facts.driver
    if driver is None:
        yield "driver", _absent(facts, "driver")
    else:
        yield "driver", f"{_or(driver.version)}, CUDA {_or(driver.cuda)} ({driver.source})"
    if not facts.gpus:
        yield "gpus", "none" if facts.gpus is not None else _UNKNOWN
    for gpu in facts.gpus or ():
        yield f"gpu {gpu.index}", _gpu(gpu)
    if facts.topology and len(facts.topology) > 1:
        for index, row in enumerate(facts.topology):
            yield f"links {index}", " ".join(row)


def _gpu(gpu: Gpu) -> str:
    sm = (gpu.compute_capability or "?").replace(".", "")
    parts = [f"{_or(gpu.name)}, SM{sm}, {_or(gpu.free_mib)} of {_or(gpu.memory_mib)} MiB free"]
    if gpu.processes:
        parts.append("used by " + ", ".join(f"{p.name or '?'} ({p.pid})" for p in gpu.processes))
    if not gpu.visible:
        parts.append("hidden by CUDA_VISIBLE_DEVICES")
    return "; ".join(parts)


def _resources(facts: HostFacts) -> Iterator[tuple[str, str]]:
    if (memory := facts.memory) and memory.total is not None:
        free = human_bytes(memory.available) if memory.available is not None else _UNKNOWN
        yield "memory", f"{free} of {human_bytes(memory.total)} available"
    if cgroup := facts.cgroup:
        limit = human_bytes(cgroup.memory) if cgroup.memory is not None else "no limit"
        cpus = f"{cgroup.cpus:g} CPUs" if cgroup.cpus is not None else "no limit"
        yield "cgroup", f"memory: {limit}; processors: {cpus}"
    for disk in facts.disks or ():
        room = f"{human_bytes(disk.free)} of {human_bytes(disk.total)} free"
        yield disk.use, f"{room} ({disk.path})" + ("" if disk.writable else ", not writable")
    if setting := facts.setting:
        yield "runs in", f"notebook: {setting.notebook}; container: {setting.container}"


def _absent(facts: HostFacts, key: str) -> str:
    return "none" if facts.reason(key) is None else _UNKNOWN


def _or(value: object) -> str:
    return _UNKNOWN if value is None else str(value)
