"""Where in a staged runtime a module, script, library or file is, and what brings it into use.

Decided from the RECORDs alone: nothing is imported, and it is the same under any interpreter.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from kvreg.errors import NotFoundError
from kvreg.runtime import Runtime, WheelEntry
from kvreg.wheel.record import read_record

Kind = Literal["script", "module", "library", "file"]

_LIBRARY = re.compile(r".+\.so(\.\d+)*")


@dataclass(frozen=True)
class Location:
    """A place in the runtime. `use` is what brings it into use; `hides` what of the host's own
    then cannot be seen (a module of the same name), if anything."""

    kind: Kind
    path: Path
    wheel: str
    use: str
    hides: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        fields = {
            "kind": self.kind,
            "path": str(self.path),
            "wheel": self.wheel,
            "use": self.use,
        }
        return fields if self.hides is None else {**fields, "hides": self.hides}


def locate(runtime: Runtime, name: str, profile: str) -> tuple[Location, ...]:
    """All that `name` means in the runtime; `profile` is what commands call it by.

    A name is that of a script, a dotted module, the file name of a shared object, or a path
    relative to the runtime. Raises `NotFoundError`.
    """
    found = [
        Location(kind, runtime.place(wheel.role) / path, wheel.filename, use, hides)
        for path, wheel in _files(runtime)
        for kind, use, hides in _meanings(path, name, profile, wheel)
    ]
    if not found:
        raise NotFoundError(
            f"the runtime of {runtime.profile_name} has no {name}",
            expected="a script, a dotted module, a shared object or a file of it",
            remedy="its files are listed in the RECORD files of its dist-info directories",
        )
    order = ("script", "module", "library", "file")
    return tuple(sorted(found, key=lambda item: (order.index(item.kind), item.path)))


def _files(runtime: Runtime) -> Iterator[tuple[str, WheelEntry]]:
    for wheel in runtime.wheels:
        record = runtime.place(wheel.role) / wheel.record
        rows, _ = read_record(record.read_bytes(), wheel.record)
        yield from ((path, wheel) for path in rows)


def _meanings(
    path: str, name: str, profile: str, wheel: WheelEntry
) -> Iterator[tuple[Kind, str, str | None]]:
    if path == f"bin/{name}":
        yield "script", f"kvreg run {profile} -- {name}", None
    elif _is_module(path, name):
        yield "module", f"kvreg run {profile} -- python -c 'import {name}'", _hidden(name)
    elif _LIBRARY.fullmatch(PurePosixPath(path).name) and _is_library(path, name):
        yield "library", f"loaded by the modules of {wheel.name}; on no library path", None
    elif path == name:
        yield "file", f"kvreg env {profile}: it lies on PYTHONPATH", None


def _is_module(path: str, name: str) -> bool:
    base = name.replace(".", "/")
    if path in (f"{base}.py", f"{base}/__init__.py"):
        return True
    # base.so, base.abi3.so, base.cpython-312-x86_64-linux-gnu.so
    return path.startswith(f"{base}.") and path.endswith(".so") and "/" not in path[len(base) :]


def _is_library(path: str, name: str) -> bool:
    file = PurePosixPath(path).name
    return name in (path, file) or (".so" in name and file.startswith(f"{name}."))


def _hidden(name: str) -> str | None:
    """The host's own module of that name, found without importing anything."""
    top = name.partition(".")[0]
    spec = PathFinder.find_spec(top)
    if spec is None:
        return None
    return spec.origin or next(iter(spec.submodule_search_locations or []), None)
