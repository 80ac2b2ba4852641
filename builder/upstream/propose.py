"""Propose: a derived profile with its locks in a folder of its own, ready to review."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from packaging.version import Version

from builder.cache import InputCache
from builder.files import write_bytes
from builder.freeze import FILE as FREEZE_FILE
from builder.freeze import freeze_text, read_freeze
from builder.index import PackageIndex
from builder.layout import Checkout
from builder.lock import lock_profile
from builder.overlay import Resolver
from builder.overlay_lock import lock_text
from builder.toolchain_definition import load_toolchain, toolchain_names
from builder.upstream.derivation import Target, changes, decisions, derive, derived_name
from builder.upstream.judgement import Judgement, torch_pin
from builder.upstream.locked import remote_tags
from builder.upstream.policy import load_policy
from builder.upstream.release import ReleaseFiles, find_release, read_release, torch_cuda
from builder.upstream.watch import Follower, check
from kvreg.drift import drift
from kvreg.errors import ContractError, UsageError
from kvreg.model.profile import PROFILE_FILE, Profile, load_profile
from kvreg.overlay import LOCK_KEY

Say = Callable[[str], None]


@dataclass(frozen=True)
class Proposal:
    """A written proposal: what changed against the old profile, and what is left to decide."""

    profile: str
    derived_from: str
    folder: Path
    judgement: Judgement
    digest: str | None
    files: tuple[str, ...]
    changes: tuple[dict[str, Any], ...]
    decisions: tuple[str, ...]
    drift: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            **asdict(self),
            "folder": str(self.folder),
            "judgement": self.judgement.to_dict(),
            "files": list(self.files),
            "changes": list(self.changes),
            "decisions": list(self.decisions),
        }


def propose(
    checkout: Checkout,
    follower: Follower,
    tag: str,
    index: PackageIndex,
    cache: InputCache,
    *,
    name: str | None = None,
    host_freeze: Path | None = None,
    hosts: Sequence[Path] = (),
    git: str | None = None,
    say: Say,
) -> Proposal:
    """Write ``profiles/<derived>/`` for a release; it appears whole or not at all.

    host_freeze: ``pip freeze`` of the host that the new profile is for; without it the old
    profile's list serves where the host need not change, and else no overlay is locked. hosts:
    folders of published images that the derived profile is held against. Raises
    ContractError for a release that cannot be supported, UsageError for one that the profile is
    made of or a name that is taken, and what locking raises.
    """
    policy = load_policy()
    report = check(checkout, [follower], index, cache, only=tag, git=git, say=say)
    (judgement,) = report.judgements
    _refuse(judgement)
    release = find_release(follower.follows.package, index, tag)
    files = read_release(release, policy.packages[release.package], index, cache)
    target = _target(checkout, follower, files, index, git)
    derived = derived_name(follower.profile, target, name)
    folder = checkout.profiles / derived
    if folder.exists():
        raise UsageError(
            f"there is a profile {derived} already",
            remedy="give another one: --name",
        )
    text = (follower.folder / PROFILE_FILE).read_text("utf-8")
    fresh = checkout.profiles / f".{derived}.{os.getpid()}"
    fresh.mkdir()
    try:
        changed = derive(text, follower.profile, target, policy, derived)
        write_bytes(fresh / PROFILE_FILE, changed.encode())
        profile = load_profile(fresh, allow_missing_locks=True)
        lock_profile(profile, fresh, index, say)
        freeze = _freeze(follower, judgement, host_freeze)
        if freeze is not None and LOCK_KEY in profile.locks:
            _lock_overlay(profile, fresh, files, freeze, index, say)
        fresh.replace(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    found = _described(follower, judgement, target, folder, has_freeze=freeze is not None)
    if not hosts:
        return found
    new = _with_locks_there(load_profile(folder, allow_missing_locks=True))
    return replace(found, drift=drift(new, hosts).to_dict())


def _refuse(judgement: Judgement) -> None:
    if judgement.verdict == "current":
        raise UsageError(f"{judgement.profile} is made of {judgement.tag} already")
    if judgement.verdict == "unsupported":
        raise ContractError(
            f"{judgement.package} {judgement.tag} cannot be supported by {judgement.profile}",
            found="; ".join(str(f) for f in judgement.findings if f.status == "unsupported"),
        )


def _target(
    checkout: Checkout,
    follower: Follower,
    files: ReleaseFiles,
    index: PackageIndex,
    git: str | None,
) -> Target:
    profile, release = follower.profile, files.release
    pin = torch_pin(files) or Version(profile.host.torch.validated).public
    cuda = profile.host.torch_cuda.validated
    if Version(pin).release != Version(profile.host.torch.validated).release:
        # What is built is linked against what can be locked: the index's own torch.
        cuda = torch_cuda(pin, follower.minor, index) or cuda
    nvccs = {
        name: load_toolchain(name, checkout.dockerfiles).cuda
        for name in toolchain_names(checkout.dockerfiles)
    }
    fitting = {n: v for n, v in nvccs.items() if Version(v).major == Version(cuda).major}
    return Target(
        version=release.version,
        torch=pin,
        cuda=cuda,
        commit=remote_tags(git).get(release.tag, "") if git else "",
        uploaded=release.sdist.uploaded if release.sdist else None,
        toolchains=fitting,
        day=_resolved_as_of(profile, release.sdist.uploaded if release.sdist else None),
    )


def _resolved_as_of(profile: Profile, uploaded: int | None) -> str:
    """The day that the overlay is resolved as of: the old one, or the first after the release."""
    old = profile.overlay.exclude_newer if profile.overlay else ""
    if uploaded is None:
        return old
    after = (datetime.fromtimestamp(uploaded, UTC) + timedelta(days=1)).date().isoformat()
    return max(old, after)


def _freeze(
    follower: Follower, judgement: Judgement, host_freeze: Path | None
) -> dict[str, str] | None:
    if host_freeze is not None:
        return read_freeze(host_freeze)
    beside = follower.folder / FREEZE_FILE
    # A list of a host that nobody has seen would claim what is not known.
    return read_freeze(beside) if judgement.verdict == "rebuild" and beside.is_file() else None


def _lock_overlay(
    profile: Profile,
    folder: Path,
    files: ReleaseFiles,
    host: dict[str, str],
    index: PackageIndex,
    say: Say,
) -> None:
    """As `builder overlay lock` does, from upstream's METADATA: the wheel is not built yet."""
    date = profile.overlay.exclude_newer if profile.overlay else ""
    found = Resolver(profile, files.raw_metadata, host, index, date).resolve(say)
    write_bytes(folder / FREEZE_FILE, freeze_text(host).encode())
    text = lock_text(found, profile, host, date)
    write_bytes(folder / profile.locks[LOCK_KEY].file, text.encode())


def _described(
    follower: Follower,
    judgement: Judgement,
    target: Target,
    folder: Path,
    *,
    has_freeze: bool,
) -> Proposal:
    profile = load_profile(folder, allow_missing_locks=True)
    whole = all(lock.sha256 for lock in profile.locks.values())
    old = follower.profile.to_dict()
    new = _with_locks_there(profile).to_dict()
    return Proposal(
        profile=profile.name,
        derived_from=follower.profile.name,
        folder=folder,
        judgement=judgement,
        digest=profile.digest if whole else None,
        files=tuple(sorted(path.name for path in folder.iterdir())),
        changes=tuple(changes(old, new)),
        decisions=tuple(decisions(judgement, target, has_freeze=has_freeze)),
    )


def _with_locks_there(profile: Profile) -> Profile:
    """Without the locks that are still to be written: such a profile can be digested."""
    return replace(profile, locks={k: lock for k, lock in profile.locks.items() if lock.sha256})


def page(proposal: dict[str, Any]) -> str:
    """A proposal's data as Markdown: the text of a pull request."""
    judgement = proposal["judgement"]
    lines = [
        f"# {proposal['profile']}: {judgement['package']} {judgement['tag']}",
        "",
        f"Derived from `{proposal['derived_from']}`. Verdict: **{judgement['verdict']}**.",
        "",
        "## To be decided by a person",
        "",
        *(f"- [ ] {text}" for text in proposal["decisions"]),
        *([] if proposal["decisions"] else ["Nothing."]),
        "",
        f"## What changed against {proposal['derived_from']}",
        "",
        "| key | old | new |",
        "| --- | --- | --- |",
        *(f"| `{c['key']}` | {_cell(c['old'])} | {_cell(c['new'])} |" for c in proposal["changes"]),
        *_drift(proposal["drift"]),
        "",
        "## Findings",
        "",
        "| status | check | what | old | new | where to look |",
        "| --- | --- | --- | --- | --- | --- |",
        *(
            "| " + " | ".join(_cell(f.get(k)) for k in _COLUMNS) + " |"
            for f in judgement["findings"]
        ),
    ]
    return "\n".join(lines) + "\n"


def _drift(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return []
    rows = [
        f"| {day['date']} | {day['status']} | {_cell(', '.join(day['violated']) or 'nothing')} |"
        for day in found["days"]
    ]
    return [
        "",
        "## Published images against it",
        "",
        "| image | status | violated |",
        "| --- | --- | --- |",
        *rows,
    ]


_COLUMNS = ("status", "check", "what", "expected", "found", "evidence")


def _cell(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "\\|").replace("\n", " ")


def text(proposal: dict[str, Any]) -> str:
    """A proposal's data for a terminal."""
    judgement = proposal["judgement"]
    lines = [
        f"{proposal['folder']}: {judgement['package']} {judgement['tag']}, {judgement['verdict']}",
        f"  {', '.join(proposal['files'])}",
        f"  profile digest {proposal['digest'] or 'none yet: a lock is missing'}",
        f"changed against {proposal['derived_from']}:",
        *(f"  {c['key']}: {c['old']} -> {c['new']}" for c in proposal["changes"]),
        "to be decided by a person:",
        *(f"  - {line}" for line in proposal["decisions"] or ["nothing"]),
    ]
    return "\n".join(lines)
