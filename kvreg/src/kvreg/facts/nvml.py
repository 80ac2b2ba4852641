"""GPUs through NVML, by the module ``pynvml`` of the package ``nvidia-ml-py``."""

from pathlib import PurePosixPath
from typing import Any, NamedTuple

from kvreg.facts.machine import Machine
from kvreg.facts.model import Driver, Gpu, Process

_MIB = 1 << 20
# nvmlGpuTopologyLevel_t, in nvidia-smi's words.
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


class Found(NamedTuple):
    """What was found: driver, GPUs, and the matrix of connections."""

    driver: Driver | None
    gpus: tuple[Gpu, ...]
    topology: tuple[tuple[str, ...], ...] | None


def ask(machine: Machine) -> Found:
    """Everything that NVML tells.

    Raises `ImportError` without the module and `RuntimeError` when NVML cannot be started, which
    is so on a machine without a driver.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise RuntimeError(f"NVML: {error}") from None
    try:
        return _found(machine, pynvml)
    except pynvml.NVMLError as error:
        raise RuntimeError(f"NVML: {error}") from None
    finally:
        pynvml.nvmlShutdown()


def _found(machine: Machine, nvml: Any) -> Found:
    handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    cuda = _or_none(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    version = _text(nvml.nvmlSystemGetDriverVersion())
    driver = Driver(version, f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None, "nvml")
    gpus = tuple(_gpu(nvml, index, handle) for index, handle in enumerate(handles))
    for gpu in gpus:
        if gpu.processes is None:
            machine.miss(f"gpus[{gpu.index}].processes", "NVML does not tell them here")
    topology = machine.attempt("topology", lambda: _matrix(nvml, handles))
    return Found(driver, gpus, topology)


def _gpu(nvml: Any, index: int, handle: Any) -> Gpu:
    capability = _or_none(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    memory = _or_none(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    pci = _or_none(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    return Gpu(
        index=index,
        name=_text(_or_none(nvml, nvml.nvmlDeviceGetName, handle)),
        uuid=_text(_or_none(nvml, nvml.nvmlDeviceGetUUID, handle)),
        bus_id=_text(pci.busId) if pci else None,
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        memory_mib=memory.total // _MIB if memory else None,
        free_mib=memory.free // _MIB if memory else None,
        visible=True,
        processes=_processes(nvml, handle),
    )


def _processes(nvml: Any, handle: Any) -> tuple[Process, ...] | None:
    running = _or_none(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if running is None:
        return None
    found = []
    for item in running:
        name = _text(_or_none(nvml, nvml.nvmlSystemGetProcessName, item.pid))
        memory = item.usedGpuMemory
        # The program alone: arguments may hold secrets.
        program = PurePosixPath(name.split(" ")[0]).name if name else None
        found.append(Process(int(item.pid), program, memory // _MIB if memory else None))
    return tuple(found)


def _matrix(nvml: Any, handles: list[Any]) -> tuple[tuple[str, ...], ...]:
    count = len(handles)
    rows = [["X"] * count for _ in range(count)]
    for one in range(count):
        for other in range(one + 1, count):
            name = _connection(nvml, handles[one], handles[other])
            rows[one][other] = rows[other][one] = name
    return tuple(map(tuple, rows))


def _connection(nvml: Any, one: Any, other: Any) -> str:
    links = _nvlinks(nvml, one, other)
    if links:
        return f"NV{links}"
    return _LEVELS.get(nvml.nvmlDeviceGetTopologyCommonAncestor(one, other), "unknown")


def _nvlinks(nvml: Any, one: Any, other: Any) -> int:
    """How many NVLinks join two GPUs: directly, or through switches that both are linked to."""
    status = _or_none(
        nvml, nvml.nvmlDeviceGetP2PStatus, one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK
    )
    if status != nvml.NVML_P2P_STATUS_OK:
        return 0
    target = nvml.nvmlDeviceGetPciInfo(other).busId
    direct = through = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        if _or_none(nvml, nvml.nvmlDeviceGetNvLinkState, one, link) != nvml.NVML_FEATURE_ENABLED:
            continue
        remote = _or_none(nvml, nvml.nvmlDeviceGetNvLinkRemotePciInfo, one, link)
        kind = _or_none(nvml, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, one, link)
        if remote is not None and remote.busId == target:
            direct += 1
        elif kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            through += 1
    return direct or through


def _or_none(nvml: Any, function: Any, *arguments: Any) -> Any:
    """The answer, or None where this GPU or driver has none."""
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None


def _text(value: Any) -> str | None:
    # Old versions of the module answer bytes.
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
