"""What is known of torch and CUDA that no release's metadata says, read from ``policy.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.version import Version

FILE = Path(__file__).with_name("policy.toml")


@dataclass(frozen=True)
class LastTorch:
    """The last torch (``major.minor``) that had wheels for a CUDA variant such as ``cu128``."""

    cuda: str
    last: str
    source: str


@dataclass(frozen=True)
class CudaMajor:
    """What a CUDA major version supports at least, and the first driver that runs it."""

    major: int
    oldest_capability: str
    driver: str
    source: str


@dataclass(frozen=True)
class Watched:
    """A package that is followed, and which members of its sdist decide what is built."""

    package: str
    build_files: tuple[str, ...]
    stop_before: str


@dataclass(frozen=True)
class Follows:
    """Which package a recipe follows, and whether it compiles it."""

    package: str
    compiles: bool


@dataclass(frozen=True)
class Policy:
    """The whole file."""

    torch: tuple[LastTorch, ...]
    cuda: tuple[CudaMajor, ...]
    packages: Mapping[str, Watched]
    recipes: Mapping[str, Follows]

    def last_torch(self, variant: str) -> LastTorch | None:
        """The limit of a CUDA variant, None where there is none."""
        return next((item for item in self.torch if item.cuda == variant), None)

    def makes(self, variant: str, torch: str) -> bool:
        """Whether torch of that version has wheels for the variant."""
        limit = self.last_torch(variant)
        return limit is None or Version(torch).release[:2] <= Version(limit.last).release[:2]

    def cuda_major(self, version: str) -> CudaMajor | None:
        """What is known of the CUDA of this version."""
        return next((c for c in self.cuda if c.major == Version(version).major), None)


@cache
def load_policy(path: Path = FILE) -> Policy:
    """Read the policy that comes with the builder."""
    tree = tomllib.loads(path.read_text("utf-8"))
    return Policy(
        tuple(LastTorch(**item) for item in tree["torch"]),
        tuple(CudaMajor(**item) for item in tree["cuda"]),
        {
            name: Watched(name, tuple(item["build_files"]), item["stop_before"])
            for name, item in tree["package"].items()
        },
        {name: Follows(**item) for name, item in tree["recipe"].items()},
    )


def variant_of(cuda: str) -> str:
    """The name of a CUDA version in torch's local versions.

    >>> variant_of("12.8"), variant_of("13.0.2")
    ('cu128', 'cu130')
    """
    major, minor = Version(cuda).release[:2]
    return f"cu{major}{minor}"
