"""GPUs through the program ``nvidia-smi``, where NVML's Python module is not installed."""

import csv
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from kvreg.facts.machine import Machine
from kvreg.facts.model import Driver, Gpu, Process
from kvreg.facts.nvml import Found

PROGRAM = "nvidia-smi"
FIELDS = (
    "index", "name", "uuid", "pci.bus_id", "compute_cap", "memory.total", "memory.free",
    "driver_version",
)  # fmt: skip
PROCESS_FIELDS = ("gpu_uuid", "pid", "process_name", "used_memory")

_CUDA = re.compile(r"CUDA Version\s*:\s*(\d+\.\d+)")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def ask(machine: Machine) -> Found:
    """Everything that nvidia-smi tells. `OSError` when it is not there or fails."""
    text = machine.run(
        [PROGRAM, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    )
    rows = list(_rows(text, len(FIELDS)))
    banner = machine.attempt("driver.cuda", lambda: machine.run([PROGRAM])) or ""
    cuda = _CUDA.search(banner)
    if banner and not cuda:
        machine.miss("driver.cuda", "nvidia-smi names no CUDA version")
    driver = Driver(rows[0][-1] if rows else None, cuda[1] if cuda else None, PROGRAM)
    processes = machine.attempt("gpus.processes", lambda: _processes(machine))
    gpus = tuple(_gpu(row, processes) for row in rows)
    topology = machine.attempt("topology", lambda: _topology(machine, len(gpus)))
    return Found(driver, gpus, topology)


def parse_topology(text: str, count: int) -> tuple[tuple[str, ...], ...]:
    """The matrix of ``nvidia-smi topo -m`` for the GPUs alone. `ValueError` for other texts."""
    lines = [line.split() for line in _ESCAPES.sub("", text).splitlines()]
    rows: dict[str, list[str]] = {}
    columns: list[str] = []
    for words in lines:
        if words[:1] == ["GPU0"] and not columns:
            columns = words
        elif words and re.fullmatch(r"GPU\d+", words[0]) and columns:
            rows[words[0]] = words[1:]
    names = [f"GPU{index}" for index in range(count)]
    if not set(names) <= rows.keys() or columns[:count] != names:
        raise ValueError("nvidia-smi topo -m printed no matrix of all GPUs")
    if any(len(rows[name]) < count for name in names):
        raise ValueError("nvidia-smi topo -m printed a row that is too short")
    return tuple(tuple(rows[name][:count]) for name in names)


def _topology(machine: Machine, count: int) -> tuple[tuple[str, ...], ...]:
    if count < 2:
        return (("X",),) * count
    return parse_topology(machine.run([PROGRAM, "topo", "-m"]), count)


def _gpu(row: list[str | None], processes: dict[str, list[Process]] | None) -> Gpu:
    index, name, uuid, bus_id, capability, total, free, _ = row
    found = None if processes is None else tuple(processes.get(uuid or "", ()))
    return Gpu(
        index=int(index or 0),
        name=name,
        uuid=uuid,
        bus_id=bus_id,
        compute_capability=capability,
        memory_mib=_number(total),
        free_mib=_number(free),
        visible=True,
        processes=found,
    )


def _processes(machine: Machine) -> dict[str, list[Process]]:
    query = f"--query-compute-apps={','.join(PROCESS_FIELDS)}"
    found: dict[str, list[Process]] = {}
    for row in _rows(machine.run([PROGRAM, query, "--format=csv,noheader,nounits"]), 4):
        uuid, pid, name, memory = row
        program = PurePosixPath(name.split(" ")[0]).name if name else None
        found.setdefault(uuid or "", []).append(Process(int(pid or 0), program, _number(memory)))
    return found


def _rows(text: str, width: int) -> Iterator[list[str | None]]:
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) == width:
            yield [_value(cell) for cell in row]


def _value(cell: str) -> str | None:
    word = cell.strip()
    return None if not word or word.startswith(("[", "N/A")) else word


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
