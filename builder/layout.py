"""Where the checkout keeps things: profiles, toolchains and finished builds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kvreg.errors import NotFoundError


@dataclass(frozen=True)
class Checkout:
    """The root of a checkout."""

    root: Path

    @property
    def profiles(self) -> Path:
        return self.root / "profiles"

    @property
    def dockerfiles(self) -> Path:
        return self.root / "dockerfiles"

    @property
    def dist(self) -> Path:
        return self.root / "dist"

    def profile(self, name: str) -> Path:
        """The folder of a profile given by name or as a folder. Raises NotFoundError."""
        for folder in (Path(name), self.profiles / name):
            if (folder / "profile.toml").is_file():
                return folder
        known = sorted(p.parent.name for p in self.profiles.glob("*/profile.toml"))
        raise NotFoundError(
            f"there is no profile {name!r}",
            expected="a folder with a profile.toml, or one of: " + ", ".join(known),
            found=name,
        )

    def build_folder(self, profile: str) -> Path:
        """Where `builder build` puts the wheel, its record, SBOM and log."""
        return self.dist / profile


def find_checkout(start: Path | None = None) -> Checkout:
    """The checkout around `start` (default: here), or the one this module lies in.

    ``$KVREG_CHECKOUT`` names it outright. Raises NotFoundError.
    """
    configured = os.environ.get("KVREG_CHECKOUT")
    if configured:
        candidates = [Path(configured)]
    else:
        here = (start or Path.cwd()).resolve()
        candidates = [here, *here.parents, Path(__file__).resolve().parent.parent]
    for folder in candidates:
        if (folder / "profiles").is_dir() and (folder / "dockerfiles").is_dir():
            return Checkout(folder)
    raise NotFoundError(
        "this is not inside a checkout",
        expected="a folder with profiles/ and dockerfiles/",
        found=str(Path.cwd()),
        remedy="run the command inside the checkout, or set KVREG_CHECKOUT to it",
    )
