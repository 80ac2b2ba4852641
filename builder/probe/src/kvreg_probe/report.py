"""What the probe answers: frozen data, the same in Python and in JSON (`report.schema.json`)."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

SCHEMA = 1

Status = Literal["ok", "no-gpu", "failed"]
ReasonCode = Literal["no-driver", "no-device", "stub-driver"]
ProblemCode = Literal[
    "no-kernel-image", "driver-too-old", "wrong-result", "corrupt-copy", "cuda-error"
]
TransferKind = Literal["device", "peer", "staged"]


@dataclass(frozen=True)
class CudaFailure:
    """A CUDA call that failed: its name, and the error's number, symbol and description."""

    call: str
    code: int
    name: str
    text: str


@dataclass(frozen=True)
class Problem:
    """Why a report is `failed`. `device` and `peer` are indices of visible devices."""

    code: ProblemCode
    what: str
    expected: str | None = None
    found: str | None = None
    remedy: str | None = None
    device: int | None = None
    peer: int | None = None
    cuda: CudaFailure | None = None


@dataclass(frozen=True)
class Build:
    """How the native module was compiled. `cuda_runtime` is the runtime linked into it."""

    version: str
    compute_capabilities: tuple[str, ...]
    cuda_compiler: str
    host_compiler: str
    cuda_runtime: str


@dataclass(frozen=True)
class Driver:
    """The driver: its own version and where that was read, and the CUDA version it supports.

    Each is None where it is unknown: `cuda` without a usable libcuda, `version` without NVML and
    without the kernel module's file.
    """

    version: str | None
    source: str | None
    cuda: str | None


@dataclass(frozen=True)
class Check:
    """A product computed on the device and compared with the host's.

    `worst_error` is the largest absolute difference; `worst_ratio` the largest difference as a
    fraction of its own element's bound, which `tolerance` states (0 where the bound is equality).
    """

    name: str
    status: Literal["ok", "failed"]
    elements: int
    mismatches: int
    worst_error: float
    worst_ratio: float
    tolerance: str


@dataclass(frozen=True)
class Transfer:
    """Copies of `bytes`, timed one by one with events; 1 GB is 10^9 bytes.

    `device` copies within one memory and counts every byte twice, read and written. `peer` and
    `staged` copy from one device to another, with peer access enabled and without (then through
    host memory), and count every byte once. A copy that was `skipped` says why in `reason`.
    """

    kind: TransferKind
    status: Literal["measured", "corrupt", "skipped", "failed"]
    bytes: int = 0
    repetitions: int = 0
    median_gb_per_s: float | None = None
    best_gb_per_s: float | None = None
    differing_words: int = 0
    reason: str | None = None


@dataclass(frozen=True)
class Device:
    """A visible device. `sass` is the compute capability of the machine code that it runs.

    `memory_mib` is what CUDA can use, less than nvidia-smi's total. `peak_gb_per_s` follows from
    memory clock and bus width; None where the driver does not tell them.
    """

    index: int
    status: Literal["ok", "failed"]
    name: str
    uuid: str
    pci_bus_id: str
    compute_capability: str
    multiprocessors: int
    memory_mib: int
    peak_gb_per_s: float | None
    sass: str | None
    checks: tuple[Check, ...] = ()
    transfer: Transfer | None = None


@dataclass(frozen=True)
class Link:
    """An ordered pair of devices. `performance_rank` is the runtime's: 0 is its best link."""

    source: int
    target: int
    status: Literal["ok", "failed"]
    peer_access: bool
    native_atomics: bool
    performance_rank: int
    transfers: tuple[Transfer, ...] = ()


@dataclass(frozen=True)
class Report:
    """The whole answer. Only `no-gpu` has a `reason` and its code, only `failed` has `problems`."""

    status: Status
    build: Build
    driver: Driver
    reason: str | None = None
    reason_code: ReasonCode | None = None
    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    problems: tuple[Problem, ...] = ()
    schema: int = SCHEMA

    @property
    def exit_code(self) -> int:
        """1 when something is wrong; 0 when all is well and when there is no GPU to check."""
        return 1 if self.status == "failed" else 0

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON's types, with every field present."""
        return _plain(self)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
