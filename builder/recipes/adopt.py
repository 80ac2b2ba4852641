"""A wheel of the package index taken as it is: verified, audited and published like a built one."""

from __future__ import annotations

from builder.recipes.model import Recipe, Requirements, Sources, torch_pin
from kvreg.model.profile import Profile


def sources(profile: Profile) -> Sources:
    """The one wheel."""
    return Sources(wheels=(f"{profile.runtime.package}=={profile.runtime.version}",))


def requirements(profile: Profile) -> Requirements:
    """torch alone: the audit looks the wheel's undefined symbols up in it."""
    return Requirements(only=(torch_pin(profile),))


RECIPE = Recipe(name="adopt", sources=sources, requirements=requirements)
