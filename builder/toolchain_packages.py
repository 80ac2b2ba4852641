"""What the record of a toolchain's image says of its packages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from builder.apt import Package

INDEX = "package index"
"""Stands in the place of a Debian suite for what are wheels."""


def recorded_packages(
    packages: Iterable[Mapping[str, Any]],
) -> tuple[tuple[str, str, str, str], ...]:
    """(type of package URL, name, version, sha256) of the packages in a record's list."""
    return tuple(
        ("pypi" if p["suite"] == INDEX else "deb", p["name"], p["version"], p["sha256"])
        for p in packages
    )


def packages_of(packages: Iterable[Mapping[str, Any]], suite: str) -> tuple[Package, ...]:
    """The packages of one Debian suite in a record's list."""
    names = ("name", "version", "architecture", "size", "sha256")
    return tuple(
        Package(**{name: entry[name] for name in names})
        for entry in packages
        if entry["suite"] == suite
    )
