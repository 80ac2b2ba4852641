"""The NVIDIA driver's own version, which the CUDA runtime does not tell."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path

_MODULE_FILE = Path("/proc/driver/nvidia/version")
_MODULE_VERSION = re.compile(r"\bKernel Module\b.*?\s(\d+(?:\.\d+)+)\s")


@dataclass(frozen=True)
class KernelDriver:
    """The version, such as `580.159.04`, and where it was read: `nvml` or the module's file."""

    version: str
    source: str


def read_kernel_driver() -> KernelDriver | None:
    """Ask NVML, then the kernel module's file; None where neither knows a driver."""
    version = _ask_nvml()
    if version is not None:
        return KernelDriver(version, "nvml")
    try:
        text = _MODULE_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    version = parse_module_version(text)
    return KernelDriver(version, str(_MODULE_FILE)) if version is not None else None


def parse_module_version(text: str) -> str | None:
    """Find the version in the text of the kernel module's file.

    >>> parse_module_version("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug")
    '535.104.05'
    """
    match = _MODULE_VERSION.search(text)
    return match.group(1) if match else None


def _ask_nvml() -> str | None:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        initialise, shut_down = nvml.nvmlInit_v2, nvml.nvmlShutdown
        get_version = nvml.nvmlSystemGetDriverVersion
    except (OSError, AttributeError):
        return None
    if initialise() != 0:
        return None
    try:
        text = ctypes.create_string_buffer(96)
        if get_version(text, ctypes.c_uint(len(text))) != 0:
            return None
        return text.value.decode("ascii", "replace")
    finally:
        shut_down()
