"""GPUs and their driver: through NVML where its Python module is installed, else nvidia-smi.

A machine without GPUs is a fact and no error; a machine whose driver is there and does not answer
has unknown GPUs, which is another fact.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvreg.facts import nvml, smi
from kvreg.facts.machine import Machine
from kvreg.facts.model import Driver, Gpu

_KERNEL_MODULE = "/proc/driver/nvidia/version"


@dataclass(frozen=True)
class Graphics:
    """What NVML or nvidia-smi tell. `gpus` None: unknown; empty: none."""

    driver: Driver | None
    gpus: tuple[Gpu, ...] | None
    topology: tuple[tuple[str, ...], ...] | None


def graphics(machine: Machine) -> Graphics:
    """Driver, GPUs and the connections between them."""
    told: list[str] = []
    for ask in (nvml.ask, smi.ask):
        try:
            found = ask(machine)
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            told.append(str(error))
            continue
        gpus = _with_visibility(found.gpus, machine.environment.get("CUDA_VISIBLE_DEVICES"))
        return Graphics(found.driver, gpus, found.topology)
    if not _has_driver(machine):
        return Graphics(None, (), ())
    reason = "; ".join(told)
    machine.miss("gpus", reason)
    machine.miss("topology", reason)
    machine.miss("driver.cuda", reason)
    return Graphics(Driver(_module_version(machine), None, "kernel module"), None, None)


def _with_visibility(gpus: Sequence[Gpu], variable: str | None) -> tuple[Gpu, ...]:
    """`CUDA_VISIBLE_DEVICES` as CUDA reads it: up to the first entry that names no device."""
    if variable is None:
        return tuple(gpus)
    visible = set()
    for text in variable.split(","):
        word = text.strip()
        named = [
            gpu.index
            for gpu in gpus
            if (word.isdigit() and gpu.index == int(word))
            or (word.startswith("GPU-") and (gpu.uuid or "").startswith(word))
        ]
        if len(named) != 1:
            break
        visible.add(named[0])
    return tuple(replace(gpu, visible=gpu.index in visible) for gpu in gpus)


def _has_driver(machine: Machine) -> bool:
    if machine.path(_KERNEL_MODULE).exists():
        return True
    return any(machine.path("/dev").glob("nvidia[0-9]*"))


def _module_version(machine: Machine) -> str | None:
    words = (machine.read(_KERNEL_MODULE) or "").split()
    return next((word for word in words if word[:1].isdigit() and "." in word), None)
