"""Which package needs what of which: the graph below a runtime, for one host, from METADATA."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from kvreg.model.profile import Profile

Metadata = Callable[[str, str], "bytes | None"]
"""METADATA of (canonical name, version); None where it cannot be had."""


@dataclass(frozen=True)
class Need:
    """One requirement: `parent` (with `version`) needs `child` within `specifier`."""

    parent: str
    version: str
    child: str
    specifier: str

    def allows(self, version: str) -> bool:
        """Whether a version of the child satisfies."""
        return Requirement(f"x{self.specifier}").specifier.contains(version, prereleases=True)

    def __str__(self) -> str:
        return f"{self.parent} {self.version} needs {self.child}{self.specifier}".rstrip()


def marker_environment(profile: Profile) -> dict[str, str]:
    """The marker variables of the profile's validated host."""
    version = profile.host.python.validated
    return {
        "python_version": ".".join(version.split(".")[:2]),
        "python_full_version": version,
        "implementation_version": version,
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": profile.host.arch.validated,
        "platform_release": "",
        "platform_version": "",
    }


def requires(
    metadata: bytes, extras: Iterable[str], environment: Mapping[str, str]
) -> list[Requirement]:
    """The requirements in METADATA that hold for the extras and the host."""
    raw, _ = parse_email(metadata)
    asked = ["", *extras]
    found = []
    for text in raw.get("requires_dist", []):
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # no installer could read it either
        marker = requirement.marker
        if marker is None or any(marker.evaluate({**environment, "extra": e}) for e in asked):
            found.append(requirement)
    return found


def needs(
    root: str,
    root_version: str,
    requirements: Iterable[Requirement],
    versions: Mapping[str, str],
    metadata: Metadata,
    environment: Mapping[str, str],
    leaves: Callable[[str], bool],
) -> list[Need]:
    """Every need in the graph that `requirements` of the root open.

    versions: the version that each package has; a package without one is not followed, nor is one
    that is a leaf.
    """
    found: dict[tuple[str, str, str], Need] = {}
    seen: set[tuple[str, str]] = set()
    queue = [(root, root_version, requirement) for requirement in requirements]
    while queue:
        parent, version, requirement = queue.pop(0)
        child = canonicalize_name(requirement.name)
        need = Need(parent, version, child, str(requirement.specifier))
        found.setdefault((parent, child, need.specifier), need)
        if child not in versions or leaves(child):
            continue
        for extra in ("", *sorted(requirement.extras)):
            if (child, extra) in seen:
                continue
            seen.add((child, extra))
            text = metadata(child, versions[child])
            if text is not None:
                asked = [extra] if extra else []
                queue += [(child, versions[child], r) for r in requires(text, asked, environment)]
    return list(found.values())
