"""The job matrix: which profile is built with which toolchain, and what that needs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from builder.build import locked_inputs
from builder.key import build_key
from builder.layout import Checkout
from builder.recipes.model import recipe
from kvreg.errors import NotFoundError, UsageError
from kvreg.model.profile import Profile, load_profile
from registry.store import Store

FILE = Path(__file__).with_name("matrix.toml")


@dataclass(frozen=True)
class Needs:
    """What a build needs: gibibytes and minutes are limits, not estimates."""

    size: str
    cores: int
    memory_gib: int
    disk_gib: int
    minutes: int


@dataclass(frozen=True)
class Job:
    """One build. `toolchain` and `key` are empty where nothing is compiled; `runner` is a label."""

    profile: str
    recipe: str
    toolchain: str
    runner: str
    cores: int
    memory_gib: int
    disk_gib: int
    minutes: int
    key: str
    digest: str

    def to_dict(self) -> dict[str, Any]:
        """As an entry of a matrix."""
        return asdict(self)


def matrix(
    checkout: Checkout,
    names: Iterable[str] = (),
    *,
    toolchain: str | None = None,
    runners: Mapping[str, str] | None = None,
    missing_from: Store | None = None,
) -> tuple[Job, ...]:
    """One job for each profile, by name; those of `names`, else all that have their locks.

    toolchain: taken where a profile names it, in place of its first. runners: labels by size, over
    those of ``matrix.toml``. missing_from: leave out what this store has already, by build key or
    else by profile digest. Raises NotFoundError, UsageError, NetworkError.
    """
    needs, labels = _read(FILE)
    labels = {**labels, **(runners or {})}
    unknown = set(runners or {}) - {item.size for item in needs.values()}
    if unknown:
        raise UsageError(
            "there is no such size of runner",
            expected=", ".join(sorted({item.size for item in needs.values()})),
            found=", ".join(sorted(unknown)),
        )
    asked = list(names)
    folders = [checkout.profile(name) for name in asked] or sorted(
        path.parent for path in checkout.profiles.glob("*/profile.toml")
    )
    jobs = []
    for folder in folders:
        profile = load_profile(folder, allow_missing_locks=True)
        if any(lock.sha256 is None for lock in profile.locks.values()):
            if asked:
                load_profile(folder)  # says which lock is missing
            continue  # a proposal that is not finished
        locked_inputs(profile, folder)
        job = _job(checkout, profile, needs, labels, toolchain)
        if missing_from is None or not _has(missing_from, profile):
            jobs.append(job)
    return tuple(jobs)


def _job(
    checkout: Checkout,
    profile: Profile,
    needs: Mapping[str, Needs],
    labels: Mapping[str, str],
    wanted: str | None,
) -> Job:
    name = profile.build.recipe
    if name not in needs:
        raise NotFoundError(
            f"{FILE.name} does not say what recipe {name} needs", expected=", ".join(sorted(needs))
        )
    chosen = ""
    if recipe(name).script is not None:
        allowed = profile.build.toolchains
        chosen = wanted if wanted in allowed else allowed[0]
    key = build_key(profile, chosen, checkout.dockerfiles).digest if chosen else ""
    need = needs[name]
    return Job(
        profile=profile.name,
        recipe=name,
        toolchain=chosen,
        runner=labels[need.size],
        cores=need.cores,
        memory_gib=need.memory_gib,
        disk_gib=need.disk_gib,
        minutes=need.minutes,
        key=key,
        digest=profile.digest,
    )


def _has(store: Store, profile: Profile) -> bool:
    try:
        return store.resolve(profile.digest_tag) is not None
    except NotFoundError:
        return False  # a store that the first job will make


def _read(path: Path) -> tuple[dict[str, Needs], dict[str, str]]:
    tree = tomllib.loads(path.read_text("utf-8"))
    return {name: Needs(**item) for name, item in tree["recipe"].items()}, dict(tree["runner"])
