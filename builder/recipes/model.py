"""What a recipe is, and the table of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.inputs import Input
from kvreg.errors import UsageError
from kvreg.model.profile import Profile


@dataclass(frozen=True)
class Requirements:
    """Build requirements of a recipe.

    resolved: PEP 508 strings, locked together with everything they need.
    alone: locked without what they need, except that of each name here the listed requirements
    are taken too, less `unneeded` (name -> reason), because the full set is several GB.
    only: locked without anything they need: for the audit, not for a build.
    """

    resolved: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    unneeded: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sources:
    """Sources of a recipe: sdists and wheels by ``name==version``, chosen members of a wheel.

    members: (``name==version``, glob patterns of member paths, paths to leave out).
    trees: (name, version, name in the recipe's files, folder): sources of this checkout.
    """

    sdists: tuple[str, ...] = ()
    wheels: tuple[str, ...] = ()
    members: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = ()
    trees: tuple[tuple[str, str, str, Path], ...] = ()


def _no_requirements(profile: Profile) -> Requirements:
    return Requirements()


def _no_parameters(profile: Profile, inputs: tuple[Input, ...]) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Recipe:
    """One way of getting a wheel.

    sources, requirements: what the profile needs of each. parameters: what the script is told
    beside what every script is told. files: what lies at /recipe in the container, by name; a
    folder is taken whole, less caches. script: which of them the toolchain's Python runs; None
    compiles nothing. externals: variables of upstream's build that the script sends to locked
    inputs.
    """

    name: str
    sources: Callable[[Profile], Sources]
    requirements: Callable[[Profile], Requirements] = _no_requirements
    parameters: Callable[[Profile, tuple[Input, ...]], dict[str, Any]] = _no_parameters
    files: Mapping[str, Path] = field(default_factory=dict)
    script: str | None = None
    externals: tuple[str, ...] = ()


CONTAINER = Path(__file__).parent / "container.py"
"""What the scripts import inside the container."""


def torch_pin(profile: Profile) -> str:
    """``torch==<version>`` of the profile's validated host, without the local part."""
    return f"torch=={profile.host.torch.validated.partition('+')[0]}"


_MODULES = ("vllm", "probe", "adopt", "thin")


def recipes() -> dict[str, Recipe]:
    """All recipes by name."""
    found = {}
    for name in _MODULES:
        module = importlib.import_module(f"builder.recipes.{name}")
        found[name] = module.RECIPE
    return found


def recipe(name: str) -> Recipe:
    """The recipe of that name. Raises UsageError with the names there are."""
    known = recipes()
    if name not in known:
        raise UsageError(
            f"there is no recipe {name!r}", expected=", ".join(sorted(known)), found=name
        )
    return known[name]
