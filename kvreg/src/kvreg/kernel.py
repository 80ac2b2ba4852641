"""Activation inside a running interpreter, such as a notebook's kernel.

`activate` gives this process, and every process that it starts from then on, the same import
origins as ``kvreg run`` gives a command; `deactivate` takes them back.
"""

import importlib
import importlib.machinery
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvreg import startup
from kvreg.activation import check_environment, find_runtime, variables
from kvreg.errors import ContractError, Problem
from kvreg.home import Home
from kvreg.model.profile import Profile
from kvreg.runtime import Runtime
from kvreg.settings import require_trusted, required_keys

HARMLESS = {"_distutils_hack": "setuptools' start-up hook: it follows sys.path when it is used"}
"""Modules that interpreters load by themselves, and why an older one may stay."""


@dataclass(frozen=True)
class Conflict:
    """A module that is imported already, from elsewhere than the runtime would give it."""

    module: str
    loaded: str
    runtime: str

    def to_dict(self) -> dict[str, str]:
        return {"module": self.module, "loaded": self.loaded, "runtime": self.runtime}


@dataclass(frozen=True)
class Activation:
    """What an activation did.

    `paths` lead `sys.path` now, in this order; `variables` were set in the environment; `kept` are
    settings of the user's that win over the profile's; `conflicts` were found and overruled.
    """

    runtime: Runtime
    paths: tuple[str, ...]
    variables: Mapping[str, str] = field(hash=False)
    kept: Mapping[str, str] = field(hash=False)
    conflicts: tuple[Conflict, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            "profile": self.runtime.profile_name,
            "profile_digest": self.runtime.profile_digest,
            "manifest_digest": self.runtime.manifest_digest,
            "paths": list(self.paths),
            "variables": dict(self.variables),
            "kept": dict(self.kept),
            "conflicts": [conflict.to_dict() for conflict in self.conflicts],
        }

    def __str__(self) -> str:
        lines = [f"{self.runtime.profile_name} is active: {self.runtime.manifest_digest}"]
        settings = self.runtime.profile().runtime.environment.set
        lines += [f"  set    {name}={self.variables[name]}"
                  for name in settings if name in self.variables]  # fmt: skip
        lines += [f"  kept   {name}={value}" for name, value in self.kept.items()]
        lines += [
            f"  stays  {conflict.module} from {conflict.loaded}" for conflict in self.conflicts
        ]
        return "\n".join(lines)


@dataclass
class _Active:
    """What is needed to undo an activation."""

    activation: Activation
    inserted: list[str]
    environment: dict[str, str | None]


_active: _Active | None = None


def activate(profile: str, *, home: Path | str | None = None, force: bool = False) -> Activation:
    """Make the staged runtime of a profile what this process and its children import from.

    An active runtime is replaced. Raises `NotFoundError` when none is staged, `ContractError` when
    this Python is another one than the runtime's, when the environment has a setting that the
    profile denies, and (unless `force`) when modules that the runtime brings are imported already:
    restarting the kernel and activating first is the cure.
    """
    global _active
    place = Home.find(Path(home) if home is not None else None)
    runtime = find_runtime(place, profile)
    require_trusted(runtime, required_keys())
    contract = runtime.profile()
    _require_python(contract)
    check_environment(contract, os.environ)
    places = [str(item) for item in runtime.places]
    conflicts = tuple(find_conflicts(places))
    if conflicts and not force:
        raise ContractError(
            "modules are imported already that the runtime brings in another version",
            problems=[
                Problem(item.module, "is imported already", item.runtime, item.loaded)
                for item in conflicts
            ],
            remedy="restart the kernel and activate before importing them, or force=True to go on"
            " with what is loaded",
        )
    deactivate()
    values = variables(runtime, place, os.environ)
    kept = {
        name: os.environ[name]
        for name in contract.runtime.environment.set
        if name not in values
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in values}
    inserted = _enter(places, None if sys.pycache_prefix else values[startup.PYCACHE_VARIABLE])
    os.environ.update(values)
    importlib.invalidate_caches()
    activation = Activation(runtime, tuple(places), values, kept, conflicts)
    _active = _Active(activation, inserted, before)
    return activation


def deactivate() -> tuple[str, ...]:
    """Undo `activate`: `sys.path`, the environment, import caches. Without one it does nothing.

    Returns the top-level modules that stay imported from the runtime; only a restart of the
    kernel rids it of those.
    """
    global _active
    if _active is None:
        return ()
    done, _active = _active, None
    for path in done.inserted:
        while path in sys.path:
            sys.path.remove(path)
    startup.restore()
    prefixes = tuple(f"{path}{os.sep}" for path in done.activation.paths)
    for path in list(sys.path_importer_cache):
        if f"{path}{os.sep}".startswith(prefixes):
            del sys.path_importer_cache[path]
    for name, value in done.environment.items():
        _restore(name, done.activation.variables[name], value)
    importlib.invalidate_caches()
    return tuple(
        sorted(
            name
            for name, module in list(sys.modules.items())
            if "." not in name and (_origin(module) or "").startswith(prefixes)
        )
    )


def active() -> Activation | None:
    """The activation that this process is under, if `activate` made one."""
    return _active.activation if _active else None


def find_conflicts(places: Sequence[str]) -> Iterator[Conflict]:
    """Modules in `sys.modules` that `places` would give, but that came from elsewhere."""
    tops = sorted({name.partition(".")[0] for name in list(sys.modules)} - set(HARMLESS))
    for name in tops:
        yield from _conflicts(name, list(places), places)


def _conflicts(name: str, path: list[str], places: Sequence[str]) -> Iterator[Conflict]:
    spec = importlib.machinery.PathFinder.find_spec(name, path)
    if spec is None:
        return
    module = sys.modules.get(name)
    if spec.loader is not None and spec.origin is not None:
        loaded = _origin(module) if module is not None else None
        inside = tuple(f"{place}{os.sep}" for place in places)
        if loaded is not None and not loaded.startswith(inside):
            yield Conflict(name, loaded, spec.origin)
        return
    # A namespace package belongs to nobody; its parts may.
    below = list(spec.submodule_search_locations or ())
    prefix = f"{name}."
    for child in sorted(sys.modules):
        if child.startswith(prefix) and "." not in child.removeprefix(prefix):
            yield from _conflicts(child, below, places)


def _origin(module: object) -> str | None:
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None) or getattr(module, "__file__", None)
    return origin if isinstance(origin, str) else None


def _enter(places: Sequence[str], pycache: str | None) -> list[str]:
    """Put `places` where ``PYTHONPATH`` would, and process their .pth files; what was added."""
    before = [path for path in sys.path if path not in places]
    # The directory of the script (or '') stays first, unless Python was told to leave it out.
    safe = getattr(sys.flags, "safe_path", False) or sys.flags.isolated
    position = 0 if safe or not before else 1
    sys.path[:] = [*before[:position], *places, *before[position:]]
    startup.enter(places, pycache)
    return [*places, *(path for path in sys.path if path not in before and path not in places)]


def _restore(name: str, ours: str, before: str | None) -> None:
    """Give a variable its former value, unless somebody has changed it since."""
    if os.environ.get(name) != ours:
        return
    if before is None:
        del os.environ[name]
    else:
        os.environ[name] = before


def _require_python(profile: Profile) -> None:
    fact = profile.host.python_tag
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    if not fact.judge(tag).ok or sys.implementation.name != "cpython":
        raise ContractError(
            f"this Python cannot load the runtime of {profile.name}",
            expected=f"CPython {fact.require}",
            found=f"{sys.implementation.name} {tag}",
            remedy="use a kernel of that Python",
        )
