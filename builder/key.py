"""The key of a build: what decides its bytes, known before anything is downloaded or compiled.

A finished build with the same key is the answer to a build: of this checkout, or of a registry,
which has it under the tag ``b-<first 32 hex of the key>``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from builder.recipes.model import Recipe, recipe
from builder.toolchain import inputs_digest
from builder.toolchain_definition import load_toolchain
from kvreg.model.canonical import canonical_json
from kvreg.model.digest import sha256_bytes
from kvreg.model.profile import Profile


@dataclass(frozen=True)
class BuildKey:
    """Three digests: of the profile as far as it reaches the build (with its locks, so with every
    input), of the recipe's files, and of the toolchain's definition."""

    profile: str
    recipe: str
    toolchain: str

    def to_dict(self) -> dict[str, str]:
        """As a record has it."""
        return {**vars(self), "digest": self.digest}

    @property
    def digest(self) -> str:
        """``sha256:<hex>`` over the three."""
        return sha256_bytes(canonical_json(dict(vars(self))))

    @property
    def tag(self) -> str:
        """The tag of what was built from it."""
        return key_tag(self.digest)


def key_tag(digest: str) -> str:
    """``b-`` and the first 32 hex digits of a key."""
    return "b-" + digest.removeprefix("sha256:")[:32]


def build_key(profile: Profile, toolchain: str, dockerfiles: Path) -> BuildKey:
    """The key of a compile of `profile` with a toolchain of this name. Raises NotFoundError."""
    inputs = inputs_digest(load_toolchain(toolchain, dockerfiles))
    return BuildKey(profile.build_digest, recipe_digest(recipe(profile.build.recipe)), inputs)


def recipe_digest(made: Recipe) -> str:
    """``sha256:<hex>`` over the names and bytes of what lies at /recipe in the container.

    A source tree of this checkout is not among it: the profile's lock has its digest.
    """
    files = {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in made.files.items()
        if path.is_file()
    }
    return sha256_bytes(canonical_json({"name": made.name, "files": files}))
