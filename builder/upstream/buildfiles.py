"""What a release's build files would build: architectures, kernels, externals, torch, Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from packaging.version import InvalidVersion, Version

from builder.upstream.cmake import Command, Run, run

ENTRY = "CMakeLists.txt"
_SOURCE_VARIABLE = re.compile(r"\bENV\{([A-Z0-9_]+_SRC_DIR)\}")
_GROUP = "_ARCHS"


@dataclass(frozen=True)
class Stated:
    """A value and where it is written, as ``file:line``."""

    value: str
    place: str


@dataclass(frozen=True)
class External:
    """Sources that the build would clone.

    variables: environment variables that send it to a folder instead.
    """

    name: str
    repository: str
    revision: str
    place: str
    variables: tuple[str, ...]


@dataclass(frozen=True)
class BuildFacts:
    """What a build for some capabilities with one nvcc comes to.

    supported: every compute capability that this nvcc builds. groups: kernel groups that are
    compiled for the capabilities asked for, by the variable that decides. torch: the version that
    the build expects; pythons: the Python versions that it accepts.
    """

    nvcc: str
    supported: Stated | None
    groups: Mapping[str, Stated]
    externals: tuple[External, ...]
    torch: Stated | None
    pythons: Stated | None

    def supports(self, capability: str) -> bool:
        """Whether the capability (``7.5``) is among those supported."""
        return self.supported is not None and capability in self.supported.value.split(";")


def read_build(
    files: Mapping[str, str], nvcc: str, capabilities: tuple[str, ...], python: str
) -> BuildFacts:
    """Go through the build files as CMake would with this nvcc for these capabilities."""
    variables = {
        "CMAKE_CUDA_COMPILER_VERSION": nvcc,
        "CUDA_VERSION": nvcc,
        "CUDA_ARCHS": ";".join(c.rstrip("af") for c in capabilities),
        "CUDA_FOUND": "TRUE",
        "HIP_FOUND": "",
        "PYTORCH_FOUND_HIP": "",
        "VLLM_GPU_LANG": "CUDA",
        "VLLM_TARGET_DEVICE": "cuda",
        "VLLM_PYTHON_EXECUTABLE": f"python{python}",
    }
    done = run(files, ENTRY, variables)
    groups = {
        name: Stated(value, done.places[name])
        for name, value in done.variables.items()
        if value and any(c[1][:1] == (name,) for c in done.named("cuda_archs_loose_intersection"))
    }
    return BuildFacts(
        nvcc=nvcc,
        supported=_stated(done, "CUDA_SUPPORTED_ARCHS"),
        groups=dict(sorted(groups.items())),
        externals=_externals(done, files),
        torch=_stated(done, "TORCH_SUPPORTED_VERSION_CUDA"),
        pythons=_stated(done, "PYTHON_SUPPORTED_VERSIONS"),
    )


def _stated(done: Run, name: str) -> Stated | None:
    if name not in done.places:
        return None
    return Stated(done.variables[name], done.places[name])


def _externals(done: Run, files: Mapping[str, str]) -> tuple[External, ...]:
    found: dict[str, External] = {}
    for command, arguments in done.named("fetchcontent_declare", "fetchcontent_populate"):
        values = dict(pairwise(arguments))
        if "GIT_REPOSITORY" in values:
            found[arguments[0]] = External(
                arguments[0],
                values["GIT_REPOSITORY"],
                values.get("GIT_TAG", ""),
                command.place,
                _variables(command, files),
            )
    return tuple(found[name] for name in sorted(found))


def _variables(command: Command, files: Mapping[str, str]) -> tuple[str, ...]:
    """Which variables its file reads before it clones: the nearest ones above the command."""
    lines = files[command.file].splitlines()[: command.line]
    names = [name for line in reversed(lines) for name in _SOURCE_VARIABLE.findall(line)]
    return tuple(dict.fromkeys(names[:1]))


def same_version(left: str, right: str) -> bool:
    """Whether two versions are equal up to what is not stated (``2.10.0`` is ``2.10.0+cu128``)."""
    try:
        return Version(left).release == Version(right).release
    except InvalidVersion:
        return left == right
