"""A wheel of the package index taken as it is: verified, audited and published like a built one."""

from __future__ import annotations

from builder.recipes.model import Recipe, Sources
from kvreg.model.profile import Profile


def sources(profile: Profile) -> Sources:
    """The one wheel."""
    return Sources(wheels=(f"{profile.runtime.package}=={profile.runtime.version}",))


RECIPE = Recipe(name="adopt", sources=sources)
