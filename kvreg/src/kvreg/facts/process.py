"""A simulated process that has imported torch, as far as files are loaded.

``torch/__init__.py`` loads ``libtorch_global_deps.so`` for everybody; then, in newer versions
always and in older ones when that failed, CUDA's libraries by their paths in the first place on
``sys.path`` that has them; then ``torch._C``. The list of libraries is read from that file.
"""

import fnmatch
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from kvreg.facts.loader import Loader
from kvreg.facts.machine import Machine

BY_TORCH = "loaded by torch by its path"

_LIBRARIES = re.compile(r'\("(\w+)", "(lib[\w.*\[\]-]+)"\)')
_ALWAYS = re.compile(r"_preload_cuda_deps\(\)")


def torch_process(folder: Path | None, machine: Machine) -> Loader:
    """The process of this interpreter after ``import torch``; without a torch as it starts."""
    program = Path(sys.executable).resolve() if sys.executable else None
    loader = Loader(
        program if program and program.is_file() else None,
        machine.environment,
        root=machine.root,
    )
    if folder is None:
        return loader
    common = folder / "lib" / "libtorch_global_deps.so"
    if common.is_file():
        loader.load(common, everybody=True)
        _preload(loader, folder)
    for path in sorted(folder.glob("_C*.so")):
        loader.load(path)
    return loader


def nvidia_folders() -> tuple[Path, ...]:
    """The library folders of the installed ``nvidia-*`` packages."""
    found = {}
    for entry in sys.path:
        for folder in sorted(Path(entry or ".").glob("nvidia/*/lib")):
            found[folder] = None
    return tuple(found)


def _preload(loader: Loader, folder: Path) -> None:
    try:
        text = (folder / "__init__.py").read_text("utf-8", "replace")
    except OSError:
        return
    failed = bool(loader.missing)
    has_cuda = any(name.startswith("libcudart.so") for name in loader.loaded)
    if failed or (has_cuda and _ALWAYS.search(text)):
        for path in _chosen(text):
            loader.load(path, BY_TORCH)
        # What was missed a moment ago is there now.
        for name in [name for name in loader.missing if name in loader.loaded]:
            del loader.missing[name]


def _chosen(text: str) -> Iterator[Path]:
    """The files that torch would load, by the list in its source, each from the first place."""
    places = [Path(entry or ".") for entry in sys.path]
    found = [(place, sorted(place.glob("nvidia/cu[0-9]*/lib"))) for place in places]
    for package, pattern in dict.fromkeys(_LIBRARIES.findall(text)):
        for place, common in found:
            own = place / "nvidia" / package / "lib"
            folders = [own, *common, place / package / "lib"]
            files = [file for folder in folders for file in _matching(folder, pattern)]
            if files:
                yield files[0]
                break


def _matching(folder: Path, pattern: str) -> list[Path]:
    try:
        names = [file.name for file in folder.iterdir()]
    except OSError:
        return []
    return [folder / name for name in sorted(fnmatch.filter(names, pattern))]
