"""Overlay locks: the Python packages that stand beside the native wheel, and what they may be.

A lock is a pip requirements file that pip itself accepts with ``--require-hashes --no-deps``: one
exact version and one sha256 an entry, no host names, no options. What is written in its comments is
for people. The profile holds the lock's sha256, so the lock, and with it every overlay wheel, is
bound to the profile's digest.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from kvreg.errors import ContractError, Problem, VerificationError
from kvreg.model.digest import sha256_bytes
from kvreg.model.oci import MEDIA_TYPE_OVERLAY_LOCK, Descriptor, Manifest
from kvreg.model.profile import Profile
from kvreg.model.protected import PROTECTED_PACKAGES, is_protected

LOCK_KEY = "overlay"
"""Key of the overlay lock in a profile's ``[locks]``."""

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_ENTRY = re.compile(rf"({_NAME})==([^\s;@]+) --hash=sha256:([0-9a-f]{{64}})", re.ASCII)


@dataclass(frozen=True)
class OverlayEntry:
    """One locked wheel: canonical name, version, and the sha256 of the file."""

    name: str
    version: str
    sha256: str


def parse_lock(raw: bytes) -> tuple[OverlayEntry, ...]:
    """Read an overlay lock (untrusted).

    Raises `VerificationError` with every line that is none of a lock's, and `ContractError` when
    the lock would bring a protected package.
    """
    problems: list[Problem] = []
    entries: dict[str, OverlayEntry] = {}
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise VerificationError("the overlay lock is not UTF-8", found=str(error)) from None
    for number, line in _logical_lines(text):
        where = f"line {number}"
        match = _ENTRY.fullmatch(line)
        if match is None:
            expected = "NAME==VERSION --hash=sha256:HEX"
            problems.append(Problem(where, "is not an entry of a lock", expected, line[:200]))
            continue
        name = canonicalize_name(match[1])
        if not _is_version(match[2]):
            problems.append(Problem(where, "is not a version", found=match[2][:80]))
        elif name in entries:
            problems.append(Problem(where, "is locked twice", found=name))
        else:
            entries[name] = OverlayEntry(name, match[2], match[3])
    if problems:
        raise VerificationError("the overlay lock is malformed", problems=problems)
    refuse_protected(entries)
    return tuple(entries.values())


def refuse_protected(names: Iterable[str]) -> None:
    """Raise `ContractError` when any of the distributions belongs to the host alone."""
    found = sorted(name for name in names if is_protected(name))
    if found:
        raise ContractError(
            "the overlay would shadow packages that belong to the host",
            expected="none of " + ", ".join(PROTECTED_PACKAGES),
            found=", ".join(found),
            remedy="leave them out of the overlay: the host's own are used",
        )


def lock_descriptor(manifest: Manifest, profile: Profile) -> Descriptor | None:
    """The layer that holds the profile's overlay lock; None when the profile has no overlay.

    Raises `VerificationError` when the artifact does not hold exactly the lock that the profile
    names.
    """
    lock = profile.locks.get(LOCK_KEY)
    if lock is None or lock.sha256 is None:
        return None
    expected = f"sha256:{lock.sha256}"
    found = [item for item in manifest.layers if item.media_type == MEDIA_TYPE_OVERLAY_LOCK]
    for descriptor in found:
        if descriptor.digest == expected and len(found) == 1:
            return descriptor
    raise VerificationError(
        "the artifact does not hold the overlay lock of its profile",
        expected=f"one layer {lock.file}, {expected}",
        found=", ".join(item.digest for item in found) or "no overlay lock",
        remedy="the artifact was put together wrongly; publish it again",
    )


def check_wheels(raw: bytes | None, wheels: Sequence[OverlayEntry], profile: Profile) -> None:
    """Raise unless the artifact's overlay wheels are exactly those of the lock `raw`.

    `raw` is None for a profile without an overlay, which may then bring none. `VerificationError`
    for another lock or other wheels, `ContractError` for protected packages.
    """
    locked: set[OverlayEntry] = set()
    if raw is not None:
        expected = profile.locks[LOCK_KEY].sha256
        if sha256_bytes(raw) != f"sha256:{expected}":
            raise VerificationError("the overlay lock is not the one that the profile names")
        locked = {_normal(entry) for entry in parse_lock(raw)}
    refuse_protected(wheel.name for wheel in wheels)
    found = {_normal(wheel) for wheel in wheels}
    problems = [
        *(Problem(e.name, "is in the artifact, not in the lock", found=e.version)
          for e in found - locked),
        *(Problem(e.name, "is in the lock, not in the artifact", f"{e.version}, sha256:{e.sha256}")
          for e in locked - found),
    ]  # fmt: skip
    if problems:
        raise VerificationError(
            "the artifact's overlay wheels are not those that the profile locks",
            problems=sorted(problems, key=lambda problem: problem.where),
            remedy="the artifact was put together wrongly; publish it again",
        )


def _normal(entry: OverlayEntry) -> OverlayEntry:
    version = str(Version(entry.version))
    return OverlayEntry(canonicalize_name(entry.name), version, entry.sha256)


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    """Lines without comments, continued ones joined by one space, with their numbers."""
    start, parts = 0, []
    for number, line in enumerate(text.splitlines(), 1):
        # As pip does: a comment begins the line or follows white space.
        content = re.sub(r"(^|\s+)#.*$", "", line).strip()
        start = start or number
        continued = content.endswith("\\")
        parts.append(content.removesuffix("\\").strip())
        if not continued:
            if joined := " ".join(filter(None, parts)):
                yield start, joined
            start, parts = 0, []
    if joined := " ".join(filter(None, parts)):
        yield start, joined


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
