"""What every Python process with an activated runtime does when it starts.

This file, on its own and with the standard library alone, is also written into the home as
``sitecustomize.py`` (`kvreg.activation`), where ``PYTHONPATH`` leads to it: so that children,
scripts and ``multiprocessing`` workers see what the kernel sees.

* ``.pth`` files of the runtime are processed, as those of installed packages are.
* Compiled files of the runtime go into the home (``KVREG_PYCACHE``), so that the runtime stays as
  it was verified; the host's packages keep using theirs. ``PYTHONPYCACHEPREFIX`` serves only for
  what is imported before this.
* A Python of another version than the runtime's gets none of it on its path.
* The host's own ``sitecustomize`` runs then.
"""

import os
import site
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder, SourceFileLoader
from importlib.util import module_from_spec

RUNTIME_VARIABLE = "KVREG_RUNTIME"
PYTHON_VARIABLE = "KVREG_PYTHON"
PYCACHE_VARIABLE = "KVREG_PYCACHE"
PREFIX_VARIABLE = "PYTHONPYCACHEPREFIX"
PLACES = ("site", "overlay")
_ORIGINAL = "kvreg_original"


def enter(places: Sequence[str], pycache: str | None) -> None:
    """Make directories of `sys.path` behave as if their packages were installed there."""
    if pycache:
        redirect(places, pycache)
    for place in places:
        # Appends nothing, since the place is on the path already, but reads its .pth files.
        site.addsitedir(place)


def redirect(places: Sequence[str], pycache: str) -> None:
    """Read and write compiled files of modules below `places` below `pycache`.

    In the loader itself, and not by a path hook: there are packages that load files of theirs
    without asking the import system for a finder.
    """
    restore()
    prefixes = tuple(f"{place}{os.sep}" for place in places)
    write = SourceFileLoader.set_data

    def redirected(path: str) -> str:
        if path.endswith(".pyc") and path.startswith(prefixes):
            return f"{pycache}{path}"
        return path

    def get_data(self: SourceFileLoader, path: str) -> bytes:
        return super(SourceFileLoader, self).get_data(redirected(path))

    def set_data(self: SourceFileLoader, path: str, data: bytes, *, _mode: int = 0o666) -> None:
        write(self, redirected(path), data, _mode=_mode)  # type: ignore[call-arg]

    setattr(set_data, _ORIGINAL, write)
    SourceFileLoader.get_data = get_data  # type: ignore[method-assign, assignment]
    SourceFileLoader.set_data = set_data  # type: ignore[method-assign, assignment]


def restore() -> None:
    """Undo `redirect`."""
    original = getattr(SourceFileLoader.set_data, _ORIGINAL, None)
    if original is not None:
        SourceFileLoader.set_data = original  # type: ignore[method-assign]
        del SourceFileLoader.get_data  # the inherited one shows again


def main() -> None:
    """Start up as ``sitecustomize``."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [path for path in sys.path if path != here]
    pycache = os.environ.get(PYCACHE_VARIABLE)
    if pycache and sys.pycache_prefix == pycache:
        sys.pycache_prefix = None
    elif sys.pycache_prefix:
        pycache = None  # a prefix that the user chose keeps the runtime clean as well
    runtime = os.environ.get(RUNTIME_VARIABLE, "")
    places = [place for name in PLACES if (place := os.path.join(runtime, name)) in sys.path]  # noqa: PTH118
    if os.environ.get(PYTHON_VARIABLE) != sys.implementation.cache_tag:
        sys.path[:] = [path for path in sys.path if path not in places]
    else:
        enter(places, pycache)
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    main()
