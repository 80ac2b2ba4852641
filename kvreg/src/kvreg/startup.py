"""What every Python process with an activated runtime does when it starts.

This file, on its own and with the standard library alone, is also written into the home as
``sitecustomize.py`` (`kvreg.activation`), where ``PYTHONPATH`` leads to it: so that children,
scripts and ``multiprocessing`` workers see what the kernel sees.

* ``.pth`` files of the runtime are processed, as those of installed packages are.
* Compiled files of the runtime go into the home (``KVREG_PYCACHE``), so that the runtime stays as
  it was verified; the host's packages keep using theirs.
* A Python of another version than the runtime's gets none of it on its path.
* The host's own ``sitecustomize`` runs then.
"""

import os
import site
import sys
from collections.abc import Sequence
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    PathFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from importlib.util import module_from_spec

RUNTIME_VARIABLE = "KVREG_RUNTIME"
PYTHON_VARIABLE = "KVREG_PYTHON"
PYCACHE_VARIABLE = "KVREG_PYCACHE"
PLACES = ("site", "overlay")
_HOOK = "kvreg_runtime"


def enter(places: Sequence[str], pycache: str | None) -> None:
    """Make directories of `sys.path` behave as if their packages were installed there."""
    if pycache:
        add_hook(places, pycache)
    for place in places:
        # Appends nothing, since the place is on the path already, but reads its .pth files.
        site.addsitedir(place)


def add_hook(places: Sequence[str], pycache: str) -> None:
    """Load modules below `places` with their compiled files below `pycache`."""

    class Loader(SourceFileLoader):
        """Reads and writes compiled files elsewhere than beside the source."""

        def get_data(self, path: str) -> bytes:
            return super().get_data(_redirected(path))

        def set_data(self, path: str, data: bytes, *, _mode: int = 0o666) -> None:
            super().set_data(_redirected(path), data, _mode=_mode)

    def _redirected(path: str) -> str:
        return f"{pycache}{path}" if path.endswith(".pyc") else path

    make = FileFinder.path_hook(
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (Loader, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )
    prefixes = tuple(f"{place}{os.sep}" for place in places)

    def hook(path: str) -> FileFinder:
        if not f"{path}{os.sep}".startswith(prefixes):
            raise ImportError(f"{path} is not of a runtime")
        return make(path)

    setattr(hook, _HOOK, True)
    remove_hook()
    sys.path_hooks.insert(0, hook)
    _forget(prefixes)


def remove_hook() -> None:
    """Undo `add_hook`."""
    sys.path_hooks[:] = [hook for hook in sys.path_hooks if not getattr(hook, _HOOK, False)]


def _forget(prefixes: tuple[str, ...]) -> None:
    """Finders that were made before the hook was there."""
    for path in list(sys.path_importer_cache):
        if f"{path}{os.sep}".startswith(prefixes):
            del sys.path_importer_cache[path]


def main() -> None:
    """Start up as ``sitecustomize``."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [path for path in sys.path if path != here]
    runtime = os.environ.get(RUNTIME_VARIABLE, "")
    places = [place for name in PLACES if (place := os.path.join(runtime, name)) in sys.path]  # noqa: PTH118
    if places and os.environ.get(PYTHON_VARIABLE) != sys.implementation.cache_tag:
        sys.path[:] = [path for path in sys.path if path not in places]
    elif places:
        # A prefix that the user chose keeps the runtime clean as well.
        prefix = sys.pycache_prefix
        enter(places, None if prefix else os.environ.get(PYCACHE_VARIABLE))
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    main()
