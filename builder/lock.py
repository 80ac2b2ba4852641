"""Lock: resolve what a recipe needs into names, versions and hashes, and write the lock files.

uv is the resolver (it resolves for another Python and platform than its own); which file of a
release is taken is decided here by the build container's wheel tags.
"""

from __future__ import annotations

import fnmatch
import hashlib
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from packaging.markers import default_environment
from packaging.metadata import parse_email
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from uv import find_uv_bin

from builder.index import IndexFile, PackageIndex, index_url, target_tags
from builder.inputs import Input, Member, tree_input, write_lock
from builder.recipes.model import Requirements, Sources, recipe
from kvreg.errors import NotFoundError, UsageError
from kvreg.model.profile import Profile

Say = Callable[[str], None]

_MARKERS = {
    **default_environment(),
    "python_version": "3.12",
    "python_full_version": "3.12.0",
    "platform_machine": "x86_64",
    "platform_system": "Linux",
    "sys_platform": "linux",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "extra": "",
}


def lock_profile(profile: Profile, folder: Path, index: PackageIndex, say: Say) -> list[Path]:
    """Write ``source.lock`` and ``build.lock`` of a profile; returns the files written.

    Raises UsageError, NotFoundError, NetworkError; neither file is touched when one fails.
    """
    made = recipe(profile.build.recipe)
    sources = lock_sources(made.sources(profile), index, say)
    requirements = lock_requirements(made.requirements(profile), index, say)
    wanted = {"source": sources, "build": requirements}
    written = []
    for role, inputs in wanted.items():
        if not inputs:
            continue
        path = folder / f"{role}.lock"
        header = (
            f"Locked {role} inputs of profile {profile.name}, recipe {made.name}.\n"
            f"Written by: builder lock --profile {profile.name}"
        )
        write_lock(path, inputs, header)
        written.append(path)
    return written


def lock_sources(sources: Sources, index: PackageIndex, say: Say) -> list[Input]:
    """Lock sdists, wheels and members of wheels."""
    inputs = []
    for spec in sources.sdists:
        name, version = _pin(spec)
        inputs.append(_locked(name, version, "sdist", _sdist(name, version, index), index))
    for spec in sources.wheels:
        name, version = _pin(spec)
        file = index.best_wheel(name, version, target_tags())
        inputs.append(_locked(name, version, "wheel", file, index))
    for spec, patterns, excluded in sources.members:
        name, version = _pin(spec)
        file = index.best_wheel(name, version, target_tags())
        say(f"reading members of {file.filename} by range")
        inputs.append(
            Input(
                name,
                version,
                "members",
                file.filename,
                index.size(file),
                file.sha256,
                _members(file, patterns, excluded, index),
            )
        )
    for name, version, filename, root in sources.trees:
        inputs.append(tree_input(canonicalize_name(name), version, filename, root))
    return inputs


def lock_requirements(wanted: Requirements, index: PackageIndex, say: Say) -> list[Input]:
    """Lock build requirements: the resolved group with uv, the others without what they need."""
    pins: dict[str, str] = {}
    alone = [_pin(spec) for spec in wanted.alone]
    needed: list[str] = []
    for name, version in alone:
        file = index.best_wheel(name, version, target_tags())
        for requirement in _with_extras(_requirements_of(file, index), index):
            if canonicalize_name(requirement.name) in wanted.unneeded:
                continue
            if [s.operator for s in requirement.specifier] == ["=="]:
                pinned = next(iter(requirement.specifier)).version
                pins[canonicalize_name(requirement.name)] = pinned
            else:
                needed.append(str(Requirement(str(requirement).split(";")[0])))
        pins[name] = version
    if wanted.resolved or needed:
        say("resolving build requirements for CPython 3.12")
        pins |= resolve([*wanted.resolved, *needed])
    pins |= dict(_pin(spec) for spec in wanted.only)
    inputs = []
    for name, version in sorted(pins.items()):
        file = index.best_wheel(name, version, target_tags())
        inputs.append(_locked(name, version, "wheel", file, index))
    return inputs


def resolve(requirements: Iterable[str]) -> dict[str, str]:
    """name -> version of everything that the requirements need, for the build container."""
    command = [
        *(
            find_uv_bin(),
            "pip",
            "compile",
            "-",
            "--quiet",
            "--no-config",
            "--no-header",
            "--no-annotate",
        ),
        *("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_28"),
        *("--only-binary", ":all:", "--default-index", index_url()),
    ]
    result = subprocess.run(
        command, input="\n".join(requirements), capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise UsageError(
            "the build requirements cannot be resolved together",
            expected=", ".join(requirements),
            found=result.stderr.strip(),
            remedy="loosen the recipe's requirements",
        )
    pins = {}
    for line in result.stdout.splitlines():
        requirement = Requirement(line.split("#")[0].strip())
        pins[canonicalize_name(requirement.name)] = next(iter(requirement.specifier)).version
    return pins


def _pin(spec: str) -> tuple[str, str]:
    name, _, version = spec.partition("==")
    return canonicalize_name(name), version


def _locked(name: str, version: str, kind: str, file: IndexFile, index: PackageIndex) -> Input:
    return Input(name, version, kind, file.filename, index.size(file), file.sha256)


def _sdist(name: str, version: str, index: PackageIndex) -> IndexFile:
    wanted = f"{name.replace('-', '_')}-{version}.tar.gz"
    for file in index.files(name):
        if file.filename == wanted:
            return file
    raise NotFoundError(f"the package index has no sdist of {name} {version}", expected=wanted)


def _members(
    file: IndexFile, patterns: tuple[str, ...], excluded: tuple[str, ...], index: PackageIndex
) -> tuple[Member, ...]:
    members = []
    with index.open_zip(file) as archive:
        for info in sorted(archive.infolist(), key=lambda i: i.header_offset):
            name = info.filename
            wanted = any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
            if wanted and not info.is_dir() and name not in excluded:
                data = archive.read(info)
                members.append(Member(name, len(data), hashlib.sha256(data).hexdigest()))
    if not members:
        raise NotFoundError(f"{file.filename} has no member that matches", expected=str(patterns))
    return tuple(sorted(members, key=lambda m: m.path))


def _requirements_of(
    file: IndexFile, index: PackageIndex, extras: Iterable[str] = ("",)
) -> list[Requirement]:
    raw, _ = parse_email(index.metadata(file))
    found = [Requirement(text) for text in raw.get("requires_dist", [])]
    wanted = [_MARKERS | {"extra": extra} for extra in extras]
    return [r for r in found if r.marker is None or any(map(r.marker.evaluate, wanted))]


def _with_extras(requirements: Iterable[Requirement], index: PackageIndex) -> list[Requirement]:
    """With what the extras of pinned ones ask for in their place, pinned to one version each.

    torch for CUDA 13 names its libraries so: ``cuda-toolkit[cublas,cudart,...]==13.0.2``, a wheel
    that holds nothing, whose extras pin ``nvidia-cublas==13.1.0.3.*`` and the others.
    """
    result = []
    for requirement in requirements:
        pin = next(iter(requirement.specifier), None)
        if not requirement.extras or pin is None or pin.operator != "==":
            result.append(requirement)
            continue
        file = index.best_wheel(canonicalize_name(requirement.name), pin.version, target_tags())
        for needed in _requirements_of(file, index, sorted(requirement.extras)):
            versions = {
                version
                for listed in index.files(canonicalize_name(needed.name))
                if listed.filename.endswith(".whl")
                and (version := parse_wheel_filename(listed.filename)[1]) in needed.specifier
            }
            if not versions:
                raise NotFoundError(f"the package index has nothing for {needed}")
            result.append(Requirement(f"{needed.name}=={max(versions)}"))
    return result
