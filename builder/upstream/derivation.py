"""A profile for another release, derived from one that is there, with its comments kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import tomlkit
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from builder.upstream.judgement import Judgement
from builder.upstream.policy import Policy, variant_of
from kvreg.model.profile import Profile


@dataclass(frozen=True)
class Target:
    """What is derived for.

    torch: the release's pin. cuda: CUDA of the torch that the new host has. commit: of the tag,
    ``""`` where no git remote said. uploaded: when the sdist came to the index, seconds since
    1970. toolchains: those whose nvcc belongs to that CUDA, with their nvcc versions. day: as
    of which the overlay is resolved, ``yyyy-mm-dd``.
    """

    version: str
    torch: str
    cuda: str
    commit: str
    uploaded: int | None
    toolchains: Mapping[str, str]
    day: str


def derived_name(profile: Profile, target: Target, name: str | None) -> str:
    """``t4x2-cu128`` becomes ``t4x2-cu130`` for another CUDA, else ``t4x2-cu128-v0.19.1``."""
    if name is not None:
        return name
    old, new = variant_of(profile.host.torch_cuda.validated), variant_of(target.cuda)
    if old != new and old in profile.name:
        return profile.name.replace(old, new)
    return f"{re.sub(r'-v[0-9.]+$', '', profile.name)}-v{target.version}"


def derive(text: str, profile: Profile, target: Target, policy: Policy, name: str) -> str:
    """The profile.toml of `profile`, changed for `target`; everything else stays as it is."""
    tree = tomlkit.parse(text)
    old_version = Version(profile.runtime.version).public
    old_torch = Version(profile.host.torch.validated)
    new_torch = Version(target.torch)
    variant = variant_of(target.cuda)
    same_torch = old_torch.release == new_torch.release
    tree["name"] = name
    tree["id"] = _identity(profile, target, name)
    summary = profile.summary.replace(old_version, target.version)
    if not same_torch:
        summary = summary.replace(str(old_torch), f"{target.torch}+{variant}")
    tree["summary"] = summary
    runtime = _table(tree, "runtime")
    old_variant = variant_of(profile.host.torch_cuda.validated)
    local = profile.runtime.version.partition("+")[2].replace(old_variant, variant)
    runtime["version"] = target.version + (f"+{local}" if local else "")
    runtime["upstream_tag"] = f"v{target.version}"
    runtime["upstream_commit"] = target.commit
    if not same_torch:
        _torch(_table(tree, "host"), target, variant)
    if old_variant != variant:
        _cuda(tree, target, policy)
    build = _table(tree, "build")
    if target.uploaded is not None:
        moment = datetime.fromtimestamp(target.uploaded, UTC)
        build["source_date_epoch"] = tomlkit.item(target.uploaded).comment(
            f"{moment:%Y-%m-%d}, when upstream's sdist came to the index"
        )
    if "overlay" in tree:
        overlay = _table(tree, "overlay")
        if target.day != overlay.get("exclude_newer", ""):
            after = "the day after upstream's sdist came to the index"
            overlay["exclude_newer"] = tomlkit.item(target.day).comment(after)
    return tomlkit.dumps(tree)


def _identity(profile: Profile, target: Target, name: str) -> str:
    old = Version(profile.host.torch.validated).release
    new = Version(target.torch).release
    text = profile.id.replace(f"torch{old[0]}{old[1]}", f"torch{new[0]}{new[1]}")
    text = text.replace(variant_of(profile.host.torch_cuda.validated), variant_of(target.cuda))
    text = re.sub(r"-v[0-9.]+$", "", text)
    return f"{text}-v{target.version}"


def _torch(host: Any, target: Target, variant: str) -> None:
    _fact(host, "torch", f"=={target.torch}", f"{target.torch}+{variant}")
    cuda = ".".join(map(str, Version(target.cuda).release[:2]))
    _fact(host, "torch_cuda", f"=={cuda}", cuda)


def _cuda(tree: Any, target: Target, policy: Policy) -> None:
    major = Version(target.cuda).major
    known = policy.cuda_major(target.cuda)
    host = _table(tree, "host")
    if known is not None:
        _require(host["driver"], f">={known.driver}", known.driver)
    _require(host["cuda_driver"], f">={major}.0", f"{major}.0")
    build = _table(tree, "build")
    nvcc = target.cuda
    if target.toolchains:
        build["toolchains"] = list(target.toolchains)
        nvcc = next(iter(target.toolchains.values()))
    _require(build["cuda"], f">={major}.0,<{major + 1}", nvcc)


def _require(fact: Any, require: str, otherwise: str) -> None:
    """Change what is required; `otherwise` is validated where the old value would not do."""
    fact["require"] = require
    if not SpecifierSet(require).contains(str(fact["validated"]), prereleases=True):
        fact["validated"] = otherwise


def _fact(host: Any, name: str, require: str, validated: str) -> None:
    host[name]["require"], host[name]["validated"] = require, validated


def _table(tree: Any, name: str) -> Any:
    return tree[name]


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every value that differs between two profiles' trees, by its dotted key."""
    before, after = dict(_flat(old)), dict(_flat(new))
    return [
        {"key": key, "old": before.get(key), "new": after.get(key)}
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _flat(tree: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, tree


def decisions(judgement: Judgement, target: Target, *, has_freeze: bool) -> list[str]:
    """What a person must still decide before the derived profile is merged."""
    found = []
    for item in judgement.findings:
        where = f" [{item.evidence}]" if item.evidence else ""
        if item.status == "recipe":
            found.append(f"{item.what}, at {item.found}{where}")
        elif item.check == "python" and item.status == "profile":
            found.append(f"Python: {item.what}; host.python and python_tag are unchanged{where}")
        elif item.check == "externals" and item.status == "changed":
            found.append(
                f"{item.what}: {item.expected or '(none)'} -> {item.found}; look whether what the"
                f" recipe brings in its place still serves{where}"
            )
        elif item.check == "requirements" and item.status == "changed":
            new = [part.strip()[1:] for part in item.what.split(";") if part.strip()[0] == "+"]
            if new:
                found.append(
                    f"new requirements: {', '.join(new)}; is any of them for other hardware, so"
                    " that it belongs among [[overlay.omission]]?"
                )
        elif item.check == "overlay" and item.status == "profile":
            found.append(f"the overlay {item.what}")
        elif item.check in ("cuda", "driver") and item.status != "same":
            found.append(f"{item.what}{where}")
    if any(item.check == "torch" and item.status == "profile" for item in judgement.findings):
        found.append(
            f"torch {target.torch}: record a host that has it (kvreg facts), and put its NCCL,"
            " driver and versions into [host]; what is there was validated with the old torch"
        )
    if not has_freeze:
        found.append(
            "overlay.lock: builder overlay lock --host-freeze FILE, with the new host's pip freeze"
        )
    if not target.commit:
        found.append(
            "runtime.upstream_commit: no git remote was asked (--git); name the tag's full commit,"
            " of which the sdist's _version.py has the first digits"
        )
    if target.uploaded is None:
        found.append("build.source_date_epoch: the index does not say when the sdist came")
    if not target.toolchains:
        found.append(f"build.toolchains: none of this checkout has nvcc for CUDA {target.cuda}")
    return found
