"""Writes the composed facts of the gallery: ``python -m tests.data.facts.compose``.

What software such a host has comes from the published lists in ``tests/data/hosts``; its hardware
is stated here (the T4s as in the profile's own record: driver 580.159.04, PHB, 15360 MiB). None of
these was recorded on the machine that it describes: ``gallery.toml`` says which files were.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kvreg.facts.files import save
from kvreg.facts.model import (
    Cgroup,
    Disk,
    Driver,
    Gpu,
    HostFacts,
    Memory,
    Nccl,
    NcclFile,
    Process,
    Setting,
    Unknown,
)
from kvreg.facts.published import published_facts, read_published

FOLDER = Path(__file__).parent
HOSTS = FOLDER.parent / "hosts"
GIB = 1 << 30
SYSTEM_NCCL = "/usr/lib/x86_64-linux-gnu/libnccl.so.2"
OWN_NCCL = "/usr/local/lib/python3.12/dist-packages/nvidia/nccl/lib/libnccl.so.2"
T4 = ("Tesla T4", "7.5", 15360, 15095)
P100 = ("Tesla P100-PCIE-16GB", "6.0", 16384, 16276)
L4 = ("NVIDIA L4", "8.9", 23034, 22563)


def image(day: str) -> HostFacts:
    """The notebook image of a day on a machine without peculiarities, its GPUs not yet attached."""
    lists = read_published(HOSTS / f"colab-gpu-{day}")
    facts = published_facts(lists)
    stated = ("disks", "memory", "cgroup", "setting", "environment", "driver", "gpus", "topology")
    unknown = tuple(item for item in facts.unknown if item.fact not in (*stated, "nccl"))
    facts = replace(
        facts,
        disks=(
            Disk("shm", "/dev/shm", 15 * GIB, 15 * GIB, True),
            Disk("home", "/root", 8000 * GIB, 6500 * GIB, True),
            Disk("tmp", "/tmp", 8000 * GIB, 6500 * GIB, True),
            Disk("kvreg-home", "/kaggle/working/kvreg", 20 * GIB, 19 * GIB, True),
        ),
        memory=Memory(31 * GIB, 29 * GIB, 0),
        cgroup=Cgroup(2, 30 * GIB, 4.0),
        setting=Setting("kaggle", "docker", True),
        environment={},
        unknown=unknown,
    )
    assert facts.packages is not None
    own = NcclFile(OWN_NCCL, facts.packages["nvidia-nccl-cu12"], "loaded by torch by its path")
    system = NcclFile(SYSTEM_NCCL, lists.apt["libnccl2"].partition("-")[0], "ld.so.cache")
    return replace(facts, nccl=Nccl(own, own.origin, (own, system), None))


def with_gpus(
    facts: HostFacts, kind: tuple[str, str, int, int], count: int, link: str = "PHB"
) -> HostFacts:
    """The host with so many GPUs of one kind, every two of them connected by `link`."""
    name, capability, memory, free = kind
    gpus = tuple(
        Gpu(
            index, name, f"GPU-00000000-0000-0000-0000-{index:012}", f"00000000:00:0{4 + index}.0",
            capability, memory, free, True, (),
        )
        for index in range(count)
    )  # fmt: skip
    rows = tuple(
        tuple("X" if one == other else link for other in range(count)) for one in range(count)
    )
    driver = Driver("580.159.04", "13.0", "nvml")
    return replace(facts, gpus=gpus, topology=rows, driver=driver)


def dual_t4(day: str = "2026-05-22") -> HostFacts:
    """The host that the profile was made for."""
    return with_gpus(image(day), T4, 2)


def with_disk(facts: HostFacts, use: str, total: int, free: int) -> HostFacts:
    """The host with another size of one file system."""
    disks = tuple(
        replace(disk, total=total, free=free) if disk.use == use else disk
        for disk in facts.disks or ()
    )
    return replace(facts, disks=disks)


def preloaded_nccl() -> HostFacts:
    """The system's NCCL before torch's, by a variable that somebody left in the image."""
    facts = dual_t4()
    assert facts.nccl is not None
    own, system = facts.nccl.candidates
    system = replace(system, origin="LD_PRELOAD")
    nccl = Nccl(system, system.origin, (system, own), None)
    return replace(facts, nccl=nccl, environment={"LD_PRELOAD": SYSTEM_NCCL})


def silent_driver() -> HostFacts:
    """A driver that is there and answers nobody, so that the GPUs are unknown."""
    facts = image("2026-05-22")
    reason = "NVML: Driver/library version mismatch"
    unknown = tuple(Unknown(key, reason) for key in ("gpus", "topology", "driver.cuda"))
    driver = Driver("580.159.04", None, "kernel module")
    return replace(facts, driver=driver, unknown=(*facts.unknown, *unknown))


def busy_gpu() -> HostFacts:
    """Two T4s, of which another process has taken most of one."""
    facts = dual_t4()
    first, second = facts.gpus or ()
    second = replace(second, free_mib=2800, processes=(Process(4242, "python3", 12290),))
    return replace(facts, gpus=(first, second))


COMPOSED: dict[str, Callable[[], HostFacts]] = {
    "dual-t4": dual_t4,
    "one-t4": lambda: with_gpus(image("2026-05-22"), T4, 1),
    "hidden-t4": lambda: replace(
        dual_t4(),
        gpus=tuple(replace(g, visible=g.index == 0) for g in dual_t4().gpus or ()),
        environment={"CUDA_VISIBLE_DEVICES": "0"},
    ),
    "p100": lambda: with_gpus(image("2026-05-22"), P100, 1),
    "l4x4": lambda: with_gpus(image("2026-05-22"), L4, 4),
    "wrong-torch": lambda: dual_t4("2026-08-14"),
    "wrong-python": lambda: dual_t4("2026-08-19"),
    "two-nccls": preloaded_nccl,
    "small-shm": lambda: with_disk(dual_t4(), "shm", 64 << 20, 64 << 20),
    "full-disk": lambda: with_disk(dual_t4(), "kvreg-home", 20 * GIB, 150 << 20),
    "busy-gpu": busy_gpu,
    "silent-driver": silent_driver,
}


def main() -> None:
    """Write every composed file beside this one."""
    for name, make in COMPOSED.items():
        save(make(), FOLDER / f"{name}.json")


if __name__ == "__main__":
    main()
