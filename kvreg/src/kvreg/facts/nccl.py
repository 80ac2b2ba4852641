"""Which NCCL torch would really load, and which others are in sight.

The version is read from the library itself, where it stands as a text; a file name or a package's
version could be another one's.
"""

import re
from pathlib import Path

from kvreg.facts.elf import Elf, ElfError
from kvreg.facts.loader import Loaded, Loader, Place
from kvreg.facts.machine import Machine
from kvreg.facts.model import Nccl, NcclFile

SONAME = "libnccl.so.2"
OTHER_VARIABLE = "VLLM_NCCL_SO_PATH"

_VERSION = re.compile(rb"NCCL version (\d+\.\d+\.\d+)(?:\+|  ?compiled|\s|\0)")


def nccl(machine: Machine, loader: Loader, folders: tuple[Path, ...]) -> Nccl:
    """NCCL as a process that imported torch has it; `folders` are of packages that may bring one.

    `loader` has loaded torch already if there is one.
    """
    loaded = loader.loaded.get(SONAME)
    place = loaded.place if loaded else None
    by = loaded.by if loaded else _torch_library(loader)
    places = [*([place] if place else []), *loader.candidates(SONAME, by)]
    places += [Place(folder / SONAME, "installed package") for folder in folders]
    found: dict[Path, NcclFile] = {}
    for item in places:
        if item.path.is_file() and (real := item.path.resolve()) not in found:
            found[real] = _file(machine, item)
    other = machine.environment.get(OTHER_VARIABLE)
    return Nccl(
        loaded=found[place.path.resolve()] if place else None,
        reason=_reason(loader, place, by is not None),
        candidates=tuple(found.values()),
        other=_file(machine, Place(Path(other), OTHER_VARIABLE)) if other else None,
    )


def nccl_version(path: Path) -> str | None:
    """The version that the library says it is; None if it says none. Raises as `Elf` does."""
    with Elf(path) as elf:
        match = _VERSION.search(elf.section(".rodata"))
    return match[1].decode("ascii") if match else None


def _torch_library(loader: Loader) -> Loaded | None:
    return loader.loaded.get("libtorch_cuda.so") or loader.loaded.get("libtorch.so")


def _file(machine: Machine, place: Place) -> NcclFile:
    try:
        version = nccl_version(place.path)
    except (ElfError, OSError) as error:
        machine.miss(f"nccl.{place.path}", str(error))
        version = None
    return NcclFile(str(place.path.resolve()), version, place.origin)


def _reason(loader: Loader, place: Place | None, torch: bool) -> str:
    if place is not None:
        return place.origin
    if SONAME in loader.missing:
        return f"{Path(loader.missing[SONAME]).name} needs it and it is not found"
    return "this torch needs none" if torch else "there is no torch that would load it"
