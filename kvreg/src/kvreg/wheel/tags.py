"""Wheel file names, and whether a profile's host can load what they promise."""

import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from kvreg.errors import ContractError, VerificationError
from kvreg.model.profile import Profile

if TYPE_CHECKING:
    from kvreg.facts import HostFacts

_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl")
_PYTHON_TAG = re.compile(r"cp(\d)(\d+)")
_OLDEST_GLIBC = 5
_LEGACY = {"manylinux2014": 17, "manylinux2010": 12, "manylinux1": 5}


@dataclass(frozen=True)
class WheelName:
    """A parsed wheel file name. `name` is canonical, `version` as PEP 440 writes it."""

    filename: str
    name: str
    version: str
    tags: frozenset[Tag]


def parse_wheel_name(filename: str) -> WheelName:
    """Read an untrusted wheel file name; `VerificationError` for what is not one."""
    try:
        if _FILENAME.fullmatch(filename) is None:
            raise InvalidWheelFilename("characters that a wheel's name cannot have")
        name, version, _, tags = parse_wheel_filename(filename)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise VerificationError(
            "this is not a wheel's file name",
            expected="NAME-VERSION-PYTHON-ABI-PLATFORM.whl",
            found=f"{filename[:200]!r} ({error})",
        ) from None
    return WheelName(filename, name, str(version), tags)


def same_version(one: str, other: str) -> bool:
    """Whether two version texts mean the same version, local part included."""
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return False


def same_name(one: str, other: str) -> bool:
    """Whether two distribution names are the same name."""
    return canonicalize_name(one) == canonicalize_name(other)


def check_tags(wheel: WheelName, profile: Profile) -> None:
    """Raise `ContractError` unless the profile's validated host can load the wheel.

    The host that runs this program plays no part: a runtime is staged for the profile's host.
    """
    host = profile.host
    python, arch, glibc = host.python_tag.validated, host.arch.validated, host.glibc.validated
    if wheel.tags & _supported(python, arch, glibc):
        return
    raise ContractError(
        f"the wheel {wheel.filename} cannot be loaded by the host of profile {profile.name}",
        expected=f"{python} or abi3 or pure Python, on Linux {arch} with glibc {glibc}",
        found=", ".join(sorted(map(str, wheel.tags))),
        remedy="the artifact was published for another host; publish it again",
    )


def check_interpreter(wheel: WheelName) -> None:
    """Raise `ContractError` unless the Python that runs this program can load the wheel.

    With ``kvreg --facts`` it is the Python of that host.
    """
    from packaging.tags import sys_tags

    from kvreg.facts import replayed

    path = replayed()
    loadable: Iterable[Tag]
    if path is not None:
        from kvreg.facts import load  # only where there are some

        python, arch, glibc = _interpreter(load(path))
        loadable, platform = _supported(python, arch, glibc), f"Linux {arch}, glibc {glibc}"
        whose = f"the Python of the host in {path}"
    else:
        # A thousand of them, the likeliest first: made as far as one that fits.
        loadable = sys_tags()
        python = "cp{}{}".format(*sys.version_info[:2])
        platform = sysconfig.get_platform().replace("-", "_")
        whose = "the Python that runs kvreg"
    if not wheel.tags.isdisjoint(loadable):
        return
    raise ContractError(
        f"the wheel {wheel.filename} cannot be loaded by {whose}",
        expected=f"{python} or abi3 or pure Python, on {platform}",
        found=", ".join(sorted(map(str, wheel.tags))),
        remedy="run kvreg with the Python that is to use the runtime, or add --any-host to stage it"
        " for another machine",
    )


def _interpreter(facts: "HostFacts") -> tuple[str, str, str]:
    tag, arch, glibc = facts.python.tag, facts.system.arch, facts.system.glibc
    if not (tag and arch and glibc):
        raise ContractError(
            "the facts do not say which wheels that host loads",
            expected="its Python tag, architecture and glibc",
            found=f"{tag}, {arch}, {glibc}",
        )
    return tag, arch, glibc


@lru_cache(maxsize=8)
def _supported(python_tag: str, arch: str, glibc: str) -> frozenset[Tag]:
    match = _PYTHON_TAG.fullmatch(python_tag)
    if match is None:
        raise ContractError(
            "the profile's python_tag is not one of CPython", expected="cp312", found=python_tag
        )
    version = (int(match[1]), int(match[2]))
    platforms = list(_platforms(arch, glibc))
    return frozenset(
        [
            *cpython_tags(version, [python_tag], platforms),
            *compatible_tags(version, python_tag, platforms),
        ]
    )


def _platforms(arch: str, glibc: str) -> Iterator[str]:
    minor = int(glibc.split(".")[1])
    for number in range(minor, _OLDEST_GLIBC - 1, -1):
        yield f"manylinux_2_{number}_{arch}"
        yield from (f"{name}_{arch}" for name, least in _LEGACY.items() if least == number)
    yield f"linux_{arch}"
