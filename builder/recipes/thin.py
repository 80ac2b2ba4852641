"""Upstream's own wheel with device code for the profile's GPUs alone: see `builder.thin`."""

from __future__ import annotations

from builder.recipes.model import Recipe, Requirements, Sources, torch_pin
from kvreg.model.profile import Profile


def sources(profile: Profile) -> Sources:
    """Upstream's wheel: the profile's version without the local part that says what was done."""
    version = profile.runtime.version.partition("+")[0]
    return Sources(wheels=(f"{profile.runtime.package}=={version}",))


def requirements(profile: Profile) -> Requirements:
    """torch alone: the audit looks the wheel's undefined symbols up in it."""
    return Requirements(only=(torch_pin(profile),))


RECIPE = Recipe(name="thin", sources=sources, requirements=requirements)
