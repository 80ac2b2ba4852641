"""The project's own native probe, from the tree in builder/probe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.inputs import Input
from builder.recipes.model import CONTAINER, Recipe, Requirements, Sources
from kvreg.errors import ContractError
from kvreg.model.profile import Profile

_HERE = Path(__file__).parent
_TREE = _HERE.parent.parent / "probe"


def sources(profile: Profile) -> Sources:
    """The source tree, by the hash of its files."""
    public = profile.runtime.version.partition("+")[0]
    return Sources(trees=((profile.runtime.package, public, "src", _TREE),))


def parameters(profile: Profile, inputs: tuple[Input, ...]) -> dict[str, Any]:
    """The local part of the version, and architectures as CMake names them: SASS alone."""
    if profile.build.ptx:
        raise ContractError(
            f"profile {profile.name} asks for PTX",
            expected="build.ptx = false: a probe with PTX would run where no SASS is",
            found="true",
        )
    return {
        "local_version": profile.runtime.version.partition("+")[2],
        "architectures": ";".join(
            capability.replace(".", "") + "-real"
            for capability in profile.build.compute_capabilities
        ),
    }


def requirements(profile: Profile) -> Requirements:
    """scikit-build-core and what it drives."""
    return Requirements(resolved=("scikit-build-core>=1.1", "cmake>=3.27,<4", "ninja"))


RECIPE = Recipe(
    name="probe",
    sources=sources,
    requirements=requirements,
    parameters=parameters,
    files={"container.py": CONTAINER, "compile.py": _HERE / "compile.py", "src": _TREE},
    script="compile.py",
)
