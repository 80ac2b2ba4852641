"""Checks the CUDA devices of this machine with kernels compiled for one architecture.

    >>> import kvreg_probe
    >>> report = kvreg_probe.probe()
    >>> report.status in {"ok", "no-gpu", "failed"}
    True

The command is `python -m kvreg_probe [--json]`.
"""

from __future__ import annotations

import os
from typing import Any

from kvreg_probe.driver import read_kernel_driver
from kvreg_probe.report import (
    Build,
    Check,
    CudaFailure,
    Device,
    Driver,
    Link,
    Problem,
    Report,
    Transfer,
)
from kvreg_probe.survey import survey

__all__ = [
    "Build",
    "Check",
    "CudaFailure",
    "Device",
    "Driver",
    "Link",
    "Problem",
    "Report",
    "Transfer",
    "probe",
]


def probe() -> Report:
    """Check every visible device and every ordered pair of devices.

    What CUDA refuses is in the report, never raised. The devices' primary contexts, about 100 MB of
    each device, stay until the process ends, as with any CUDA library; the command leaves nothing.
    Raises ImportError when the native module does not load (another platform, an older Python).
    """
    from kvreg_probe import _native

    return survey(_native, read_kernel_driver(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def __getattr__(name: str) -> Any:
    """Answer `__version__` from the native module: it is the build's, known nowhere else."""
    if name == "__version__":
        from kvreg_probe import _native

        return _native.build()["version"]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
