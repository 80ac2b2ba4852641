"""Whether a staged runtime's native modules would load into this host's torch, before they do.

The process is simulated as far as files are loaded: the interpreter, torch, and then each module;
so what is checked is what the dynamic loader would do, with the search path of this environment.
"""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvreg.doctor.check import Check
from kvreg.facts.loader import Loaded, Loader
from kvreg.facts.machine import Machine
from kvreg.facts.process import torch_process
from kvreg.facts.torch import torch_folder
from kvreg.model.profile import Profile
from kvreg.runtime import Runtime

_SHOWN = 5


def native_checks(
    profile: Profile, runtime: Runtime, machine: Machine | None = None
) -> Iterator[Check]:
    """Libraries, their versions and symbols, of every shared object of the runtime's own wheel."""
    files = shared_objects(runtime)
    with torch_process(torch_folder(), machine or Machine()) as loader:
        modules = [item for path in files if (item := loader.load(path)) is not None]
        unreadable = len(files) - len(modules)
        yield _libraries(modules, loader, unreadable)
        yield _versions(modules, loader)
        yield _symbols(modules, loader, profile)


def shared_objects(runtime: Runtime) -> list[Path]:
    """The shared objects of the wheels that are no overlay, as their RECORDs list them."""
    found = []
    for wheel in runtime.wheels:
        if wheel.role == "overlay":
            continue
        with (runtime.site / wheel.record).open(newline="", encoding="utf-8") as file:
            names = [row[0] for row in csv.reader(file) if row]
        found += [runtime.site / name for name in names if _is_shared_object(name)]
    return found


def _is_shared_object(name: str) -> bool:
    base = name.rpartition("/")[2]
    return base.endswith(".so") or ".so." in base


def _libraries(modules: Sequence[Loaded], loader: Loader, unreadable: int) -> Check:
    required = "every library that the native modules name"
    missing = [
        f"{name} (for {module.path.name})"
        for module in modules
        for name in module.elf.needed
        if name not in loader.loaded
    ]
    missing += [
        f"{name} (for {Path(by).name})"
        for name, by in loader.missing.items()
        if by not in {str(module.path) for module in modules}
    ]
    if unreadable:
        missing.append(f"{unreadable} files that are no shared objects of this machine")
    if not missing:
        found = f"{len(modules)} modules, all found"
        return Check("native.libraries", required, None, found, "ok", found)
    remedy = "install nothing over the host: use the image that the profile is for"
    if any(name.startswith("libcuda.so") for name in missing):
        remedy = "libcuda.so.1 belongs to NVIDIA's driver: attach a GPU"
    return _violated("native.libraries", required, "not found", missing, remedy)


def _versions(modules: Sequence[Loaded], loader: Loader) -> Check:
    required = "every symbol version that the native modules name"
    missing = []
    for module in modules:
        for name, versions in module.elf.version_needs().items():
            library = loader.loaded.get(name)
            provided = library.elf.version_definitions() if library else frozenset()
            if library:
                lacking = [version for version in versions if version not in provided]
                missing += [f"{text} of {library.path} ({module.path.name})" for text in lacking]
    if not missing:
        found = "all provided"
        return Check("native.versions", required, None, found, "ok", found)
    remedy = "use an image whose C and C++ libraries are as new as the profile's"
    return _violated("native.versions", required, "not provided", missing, remedy)


def _symbols(modules: Sequence[Loaded], loader: Loader, profile: Profile) -> Check:
    required = "every symbol that the native modules need, above all torch's"
    missing, count, absent = [], 0, False
    for module in modules:
        scope = loader.scope(module)
        complete = all(name in loader.loaded for name in module.elf.needed)
        absent = absent or not complete
        for symbol in module.elf.undefined():
            if symbol.weak:
                continue
            count += 1
            if any(item.elf.defines(symbol.name) for item in scope):
                continue
            # A C name may be that of a library that is missing, which is said already; those of
            # CUDA and of the driver are all C names, those of torch nearly all C++.
            if complete or symbol.name.startswith("_Z"):
                missing.append(f"{symbol.name} ({module.path.name})")
    if not missing:
        found = f"{count} symbols, all provided"
        if absent:
            found = f"{count} symbols, all provided but those of missing libraries"
        return Check("native.symbols", required, None, found, "ok", found)
    remedy = (
        f"the host's torch is not the one that the runtime was compiled for"
        f" ({profile.host.torch.validated}): use an image with that one, or a runtime compiled"
        " for this one"
    )
    return _violated("native.symbols", required, "not provided", missing, remedy)


def _violated(name: str, required: str, what: str, missing: Sequence[str], remedy: str) -> Check:
    shown = ", ".join(missing[:_SHOWN])
    if len(missing) > _SHOWN:
        shown += f", and {len(missing) - _SHOWN} more"
    found = f"{len(missing)} {what}: {shown}"
    return Check(name, required, None, found, "violated", found, remedy)
