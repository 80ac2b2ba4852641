"""Bytes that changed after they were locked: refused before anything else is said of a release."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.version import Version

from builder.index import PackageIndex
from builder.inputs import Input
from kvreg.errors import NetworkError, Problem, UsageError, VerificationError
from kvreg.model.profile import Profile

GIT_TIMEOUT = 30
"""Seconds for one answer of a git remote."""

_LINE = re.compile(r"([0-9a-f]{40,64})\trefs/tags/(\S+?)(\^\{\})?")


@dataclass(frozen=True)
class Locked:
    """A profile with the files that its locks take from the index."""

    profile: Profile
    inputs: tuple[Input, ...]


def changed_files(locked: Iterable[Locked], index: PackageIndex, package: str) -> list[Problem]:
    """The files of `package` that the index lists with other bytes than the locks have.

    A file that the index no longer has is one too: nothing could be built from that lock.
    """
    there = {file.filename: file for file in index.files(package)}
    problems = []
    for item in locked:
        for one in item.inputs:
            if one.name != package or one.kind == "tree":
                continue
            file = there.get(one.filename)
            if file is None:
                what, found = "is no longer in the index", "no such file"
            elif file.sha256 != one.sha256:
                what, found = "has other bytes than when it was locked", f"sha256:{file.sha256}"
            else:
                continue
            problem = Problem(
                f"{item.profile.name}: {one.filename}", what, f"sha256:{one.sha256}", found
            )
            problems.append(problem)
    return problems


def remote_tags(remote: str) -> dict[str, str]:
    """Tag -> commit of a git remote. Raises NetworkError, UsageError."""
    if remote.startswith("-"):
        raise UsageError("this is not a git remote", found=repr(remote))
    command = ["git", "ls-remote", "--tags", "--", remote]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NetworkError(
            f"the git remote did not answer within {GIT_TIMEOUT} s", found=remote
        ) from None
    if done.returncode != 0:
        raise NetworkError(
            "the tags of the git remote cannot be read",
            expected=remote,
            found=done.stderr.strip()[-500:],
            remedy="check the address, or leave --git out: tags are then not compared",
        )
    return parse_tags(done.stdout)


def parse_tags(text: str) -> dict[str, str]:
    """The answer of ``git ls-remote --tags``: an annotated tag counts with the commit it names."""
    tags: dict[str, str] = {}
    peeled: dict[str, str] = {}
    for line in text.splitlines():
        if match := _LINE.fullmatch(line.strip()):
            (peeled if match[3] else tags)[match[2]] = match[1]
    return tags | peeled


def moved_tags(locked: Iterable[Locked], tags: Mapping[str, str]) -> list[Problem]:
    """The profiles whose upstream tag names another commit now, or is gone."""
    problems = []
    for item in locked:
        runtime = item.profile.runtime
        if not (runtime.upstream_tag and runtime.upstream_commit):
            continue
        commit = tags.get(runtime.upstream_tag)
        if commit != runtime.upstream_commit:
            where = f"{item.profile.name}: tag {runtime.upstream_tag}"
            what = "names another commit than when it was locked" if commit else "is gone"
            problems.append(Problem(where, what, runtime.upstream_commit, commit or "no such tag"))
    return problems


def refuse(problems: list[Problem]) -> None:
    """Raises VerificationError when there is any."""
    if problems:
        raise VerificationError(
            "upstream changed what was locked; nothing more is said of it",
            problems=problems,
            remedy="find out why before anything is built: a release must not change",
        )


def is_locked_version(profile: Profile, version: str) -> bool:
    """Whether a profile is made of this release."""
    tag = profile.runtime.upstream_tag.removeprefix("v") or profile.runtime.version
    return Version(tag).public == Version(version).public
