"""Do the modules load on the host's C and C++ libraries? Symbol versions against limits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from auditwheel.architecture import Architecture
from auditwheel.libc import Libc
from auditwheel.policy import WheelPolicies
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builder.audit.contents import Contents, MemberFacts
from builder.audit.report import Check
from kvreg.model.profile import Profile

_NUMBERS = re.compile(r"(?:GLIBC|GLIBCXX|CXXABI)_(\d+(?:\.\d+)*)\Z")
_NAMED = {"GLIBC_ABI_DT_RELR": (2, 36), "GLIBC_ABI_GNU2_TLS": (2, 42), "CXXABI_TM_1": (1, 3, 5)}
"""Versions without a number, by the release that introduced them."""


@dataclass(frozen=True)
class Limit:
    """A family of symbol versions, and the newest that may be needed."""

    family: str
    newest: str
    library: str

    @property
    def name(self) -> str:
        """The check's name."""
        return self.family.lower()


def limits(profile: Profile) -> tuple[Limit, ...]:
    """The profile's three limits."""
    bounds = profile.build.limits
    return (
        Limit("GLIBC", bounds.glibc, "glibc"),
        Limit("GLIBCXX", bounds.glibcxx, "libstdc++"),
        Limit("CXXABI", bounds.cxxabi, "libstdc++"),
    )


def numbers(version: str) -> tuple[int, ...] | None:
    """The numbers of a symbol version, for comparison; None for one that has none.

    >>> numbers("GLIBC_2.34")
    (2, 34)
    >>> numbers("GLIBC_PRIVATE") is None
    True
    """
    if version in _NAMED:
        return _NAMED[version]
    match = _NUMBERS.match(version)
    return tuple(int(part) for part in match[1].split(".")) if match else None


def highest(member: MemberFacts, family: str) -> str | None:
    """The newest version of a family that a module needs, such as ``2.29``."""
    versions = member.elf.versions if member.elf else ()
    found = [numbers(item.name) for item in versions if item.name.startswith(f"{family}_")]
    known = [item for item in found if item is not None]
    return ".".join(map(str, max(known))) if known else None


def check_version(contents: Contents, limit: Limit) -> Check:
    """No module needs a newer version of one family than the profile allows."""
    bound = tuple(int(part) for part in limit.newest.split("."))
    required = f"{limit.family}_{limit.newest} or older"
    places = tuple(
        place for member in contents.modules for place in _exceeding(member, limit, bound)
    )
    found = [highest(member, limit.family) for member in contents.modules]
    newest = max((item for item in found if item), key=_key, default=None)
    text = f"{limit.family}_{newest}" if newest else f"no {limit.family} symbols"
    if not places:
        return Check(limit.name, "pass", required, text)
    return Check(
        limit.name,
        "fail",
        required,
        text,
        where=places,
        remedy=f"compile on a system whose {limit.library} is not newer than the host's: use a "
        "toolchain of the profile, not the machine's own compiler",
    )


def _key(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _exceeding(member: MemberFacts, limit: Limit, bound: tuple[int, ...]) -> Iterator[str]:
    if member.elf is None:
        return
    for version in member.elf.versions:
        if not version.name.startswith(f"{limit.family}_"):
            continue
        found = numbers(version.name)
        if found is None or found > bound:
            symbols = [item.name for item in member.elf.undefined if item.version == version]
            shown = ", ".join(symbols[:5]) + (f" and {len(symbols) - 5} more" * (len(symbols) > 5))
            yield f"{member.path}: {version.name} of {version.file}" + (
                f" for {shown}" if symbols else ""
            )


def check_platform(contents: Contents, profile: Profile) -> Check:
    """A manylinux tag promises no more than the modules keep."""
    arch = profile.host.arch.validated
    try:
        tags = parse_wheel_filename(contents.filename)[3]
    except InvalidWheelFilename:
        tags = frozenset()
    platforms = sorted({tag.platform for tag in tags})
    promised = [item for item in platforms if item.startswith("manylinux")]
    required = "symbol versions within what a manylinux tag promises"
    if not promised:
        return Check("platform", "pass", required, f"no promise: {', '.join(platforms) or 'none'}")
    try:
        policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture(arch))
    except ValueError:
        return Check("platform", "skip", required, f"auditwheel has no policies for {arch}")
    fitting = policies.versioned_symbols_policy(_by_library(contents.modules))
    problems = []
    for platform in promised:
        try:
            if fitting < policies.get_policy_by_name(platform):
                problems.append(platform)
        except LookupError:
            problems.append(platform)
    if not problems:
        return Check("platform", "pass", required, ", ".join(promised))
    adopted = profile.build.recipe == "adopt"
    return Check(
        "platform",
        "note" if adopted else "fail",
        required,
        f"tagged {', '.join(problems)}, but its symbols need {fitting.name}",
        remedy=None
        if adopted
        else f"tag it {fitting.name}, or linux_{arch}: the profile's own limits decide",
    )


def _by_library(modules: Iterable[MemberFacts]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for member in modules:
        for version in member.elf.versions if member.elf else ():
            # auditwheel's policies say nothing of the loader itself
            if not version.file.startswith("ld-linux"):
                found.setdefault(version.file, set()).add(version.name)
    return found
