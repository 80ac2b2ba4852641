"""The facts of a host as one frozen value.

Sizes are in MiB where the name ends in ``_mib``, else in bytes. ``None`` means unknown when
`HostFacts.unknown` gives a reason for that key, and known to be absent (no torch, no driver) when
it does not; an empty tuple of GPUs means that there are none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kvreg.errors import ContractError, Problem
from kvreg.facts import codec
from kvreg.model.canonical import canonical_json
from kvreg.model.digest import sha256_bytes

SCHEMA = 1


@dataclass(frozen=True)
class Unknown:
    """Why the fact of a dotted key, such as ``torch.cuda``, could not be found out."""

    fact: str
    reason: str


@dataclass(frozen=True)
class Cpu:
    """The processor. `usable` counts what this process may run on."""

    model: str | None
    count: int | None
    usable: int | None


@dataclass(frozen=True)
class System:
    """Operating system and C library. `os` is os-release's pretty name."""

    os: str | None
    kernel: str | None
    arch: str | None
    glibc: str | None
    cpu: Cpu | None


@dataclass(frozen=True)
class Python:
    """The interpreter. `tag` is that of wheels for it alone, such as ``cp312`` or ``cp313t``."""

    version: str | None
    tag: str | None
    implementation: str | None
    executable: str | None
    prefix: str | None


@dataclass(frozen=True)
class Libstdcxx:
    """The C++ library that torch (else Python) would load, and the newest versions it provides."""

    path: str
    origin: str
    glibcxx: str | None
    cxxabi: str | None


@dataclass(frozen=True)
class Torch:
    """The installed torch. `cuda` None: built without CUDA. `source` is ``files`` or ``import``.

    `compute_capabilities` are those that torch's own kernels were compiled for, ``8.0+PTX`` with
    intermediate code.
    """

    version: str | None
    path: str | None
    cuda: str | None
    git: str | None
    cxx11_abi: bool | None
    compute_capabilities: tuple[str, ...] | None
    source: str


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver, and the highest CUDA version that it speaks."""

    version: str | None
    cuda: str | None
    source: str


@dataclass(frozen=True)
class Process:
    """A process that holds memory of a GPU. `name` is its program's file name alone."""

    pid: int
    name: str | None
    memory_mib: int | None


@dataclass(frozen=True)
class Gpu:
    """One GPU. `visible`: whether ``CUDA_VISIBLE_DEVICES`` leaves it to this process."""

    index: int
    name: str | None
    uuid: str | None
    bus_id: str | None
    compute_capability: str | None
    memory_mib: int | None
    free_mib: int | None
    visible: bool
    processes: tuple[Process, ...] | None


@dataclass(frozen=True)
class NcclFile:
    """A ``libnccl.so.2``. `origin` says where it was found, such as ``LD_LIBRARY_PATH``."""

    path: str
    version: str | None
    origin: str


@dataclass(frozen=True)
class Nccl:
    """The NCCL that torch would really load, and every other one in sight.

    `loaded` None: torch loads none; `reason` says why, or how the loaded one is found. `other` is
    the file of ``VLLM_NCCL_SO_PATH``.
    """

    loaded: NcclFile | None
    reason: str
    candidates: tuple[NcclFile, ...]
    other: NcclFile | None


@dataclass(frozen=True)
class Disk:
    """The file system of a directory. `use` is ``home``, ``tmp``, ``kvreg-home`` or ``shm``."""

    use: str
    path: str
    total: int
    free: int
    writable: bool


@dataclass(frozen=True)
class Memory:
    """Main memory of the machine in bytes."""

    total: int | None
    available: int | None
    swap: int | None


@dataclass(frozen=True)
class Cgroup:
    """Limits of the control groups; None: no limit. `memory` in bytes, `cpus` as a count.

    `version` None: none are mounted.
    """

    version: int | None
    memory: int | None
    cpus: float | None


@dataclass(frozen=True)
class Setting:
    """Where the program runs. `notebook`: ``kaggle``, ``colab``, ``jupyter`` or ``none``;
    `container`: ``docker``, ``podman``, ``kubernetes``, ``lxc``, ``other`` or ``none``."""

    notebook: str
    container: str
    kernel: bool


@dataclass(frozen=True)
class HostFacts:
    """Everything that is known of a host at one moment. `created` is UTC, ISO 8601."""

    created: str
    kvreg: str
    system: System | None
    python: Python | None
    libstdcxx: Libstdcxx | None
    torch: Torch | None
    driver: Driver | None
    gpus: tuple[Gpu, ...] | None
    topology: tuple[tuple[str, ...], ...] | None
    nccl: Nccl | None
    disks: tuple[Disk, ...] | None
    memory: Memory | None
    cgroup: Cgroup | None
    setting: Setting | None
    packages: Mapping[str, str] | None = field(hash=False)
    environment: Mapping[str, str] | None = field(hash=False)
    unknown: tuple[Unknown, ...]

    def reason(self, key: str) -> str | None:
        """Why a fact is unknown; a reason for ``torch`` is one for ``torch.cuda`` too."""
        for item in self.unknown:
            if item.fact == key or key.startswith(f"{item.fact}."):
                return item.reason
        return None

    @property
    def visible_gpus(self) -> tuple[Gpu, ...] | None:
        """The GPUs that this process may use."""
        return None if self.gpus is None else tuple(gpu for gpu in self.gpus if gpu.visible)

    def disk(self, use: str) -> Disk | None:
        """The file system of one use."""
        return next((disk for disk in self.disks or () if disk.use == use), None)

    def links(self) -> tuple[str, ...] | None:
        """How the visible GPUs are connected, pair by pair; None if unknown."""
        gpus = self.visible_gpus
        if gpus is None:
            return None
        if len(gpus) < 2:
            return ()
        if self.topology is None:
            return None
        indexes = [gpu.index for gpu in gpus]
        pairs = [(a, b) for place, a in enumerate(indexes) for b in indexes[place + 1 :]]
        try:
            return tuple(self.topology[a][b] for a, b in pairs)
        except IndexError:
            return None

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data; `from_dict` reads it back."""
        return {"schema": SCHEMA, **codec.to_dict(self)}

    @cached_property
    def digest(self) -> str:
        """``sha256:<hex>`` over the canonical JSON of `to_dict()`."""
        return sha256_bytes(canonical_json(self.to_dict()))

    @classmethod
    def from_dict(cls, tree: Any, where: str = "facts") -> "HostFacts":
        """Read what `to_dict` wrote, by this client or an older one.

        A key that an older client did not know is unknown. `ContractError` with every problem for
        what are no facts, and for those of a newer schema.
        """
        if not isinstance(tree, dict) or "schema" not in tree:
            raise ContractError(
                f"{where} does not hold host facts",
                expected="the output of: kvreg facts --json",
                remedy="record them again on that host: kvreg facts --output FILE",
            )
        if tree["schema"] != SCHEMA:
            raise ContractError(
                f"{where} has facts of another schema",
                expected=str(SCHEMA),
                found=repr(tree["schema"])[:80],
                remedy="read it with the kvreg that wrote it, or record the facts again",
            )
        problems: list[Problem] = []
        absent: list[str] = []
        body = {key: value for key, value in tree.items() if key != "schema"}
        found = codec.from_dict(cls, body, where, problems, absent)
        if problems or not isinstance(found, cls):
            raise ContractError(f"{where} does not hold valid host facts", problems=problems)
        new = tuple(Unknown(key, "not recorded in this file") for key in absent)
        if not new:
            return found
        fields = {name: getattr(found, name) for name in cls.__dataclass_fields__}
        return cls(**{**fields, "unknown": (*found.unknown, *new)})


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of facts."""
    found = codec.json_schema(HostFacts)
    found["properties"] = {"schema": {"const": SCHEMA}, **found["properties"]}
    found["required"] = ["schema", *found["required"]]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Facts of a host, as kvreg facts --json prints them",
        **found,
    }
