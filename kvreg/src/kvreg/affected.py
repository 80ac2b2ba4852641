"""Packages of the host that will see a runtime's version of something instead of the host's."""

import importlib.metadata
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from kvreg.runtime import Runtime


@dataclass(frozen=True)
class Affected:
    """A package of the host, what it requires, and what it would get.

    `satisfied` False: with the runtime active it gets a version that it does not accept.
    """

    package: str
    version: str
    requirement: str
    host: str
    runtime: str
    satisfied: bool

    def to_dict(self) -> dict[str, object]:
        """As JSON-ready data."""
        return asdict(self)

    def __str__(self) -> str:
        verdict = "satisfied" if self.satisfied else "NOT satisfied"
        return (
            f"{self.package} {self.version} needs {self.requirement}: the host has {self.host},"
            f" it would get {self.runtime}: {verdict}"
        )


def affected(runtime: Runtime, path: Sequence[str] | None = None) -> tuple[Affected, ...]:
    """Every requirement of the host's packages on something that the runtime shadows.

    `path`: where the host's packages are; `sys.path` without the runtime's places by default. Those
    that are not satisfied come first. Reads the metadata of every installed package: about a
    second on an image with seven hundred.
    """
    places = {str(place) for place in runtime.places}
    where = [entry for entry in (sys.path if path is None else path) if entry not in places]
    host: dict[str, importlib.metadata.Distribution] = {}
    for found in importlib.metadata.distributions(path=where):
        if name := found.metadata["Name"]:
            host.setdefault(canonicalize_name(name), found)
    brought = {canonicalize_name(wheel.name): wheel.version for wheel in runtime.wheels}
    shadowed = {name for name in brought if name in host and brought[name] != host[name].version}
    result = [
        Affected(
            package=name,
            version=distribution.version,
            requirement=str(requirement),
            host=host[child].version,
            runtime=brought[child],
            satisfied=requirement.specifier.contains(brought[child], prereleases=True),
        )
        for name, distribution in host.items()
        if name not in brought
        for child, requirement in _needs(distribution.requires or (), shadowed)
    ]
    return tuple(sorted(result, key=lambda item: (item.satisfied, item.package, item.requirement)))


def _needs(texts: Iterable[str], shadowed: set[str]) -> Iterator[tuple[str, Requirement]]:
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        child = canonicalize_name(requirement.name)
        marker = requirement.marker
        if child in shadowed and (marker is None or marker.evaluate({"extra": ""})):
            yield child, requirement
