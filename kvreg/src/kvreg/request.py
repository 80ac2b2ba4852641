"""What a PROFILE argument asks for, before any source was looked at.

==========================  =====================================================================
``NAME``                    the profile that this client's catalogue has under the name; with a
                            lock (``--locked``) the one that the lock has
``NAME@sha256:<hex>``       exactly that: the digest of a profile of that name, or of an artifact
                            (a manifest) of it
``sha256:<hex>``            the profile of that digest, known here or not
``./FOLDER``                the profile in a folder
==========================  =====================================================================
"""

import re
from dataclasses import dataclass, replace

from kvreg import catalogue
from kvreg.errors import NotFoundError, UsageError, VerificationError
from kvreg.home import Home
from kvreg.lockfile import Locked, Lockfile
from kvreg.model.digest import is_digest, parse_digest
from kvreg.model.profile import PROFILE_NAME
from kvreg.runtime import readable_runtimes

_AT = re.compile(r"([^@/]*)@(sha256:.*)", re.DOTALL)


@dataclass(frozen=True)
class Request:
    """Profile and artifact as far as they are known; `text` is the argument itself.

    `digest` is one of a profile or of a manifest: only a store can tell. `locked` is what a lock
    says that it must be.
    """

    text: str
    name: str | None = None
    profile: str | None = None
    manifest: str | None = None
    digest: str | None = None
    locked: Locked | None = None

    def on(self, home: Home) -> "Request":
        """The same with `digest` told apart, where a staged runtime or the home's folders can."""
        if self.digest is None or self.profile is not None:
            return self
        for runtime in readable_runtimes(home):
            if runtime.profile_name == self.name:
                if runtime.profile_digest == self.digest:
                    return replace(self, profile=self.digest)
                if runtime.manifest_digest == self.digest:
                    return replace(self, profile=runtime.profile_digest, manifest=self.digest)
        return self


def split_identity(text: str) -> tuple[str, str | None]:
    """The name and the digest of ``NAME@sha256:<hex>``; any other text and None.

    >>> split_identity("t4-probe")
    ('t4-probe', None)
    """
    match = _AT.fullmatch(text)
    if match is None:
        return text, None
    name, digest = match.groups()
    parse_digest(digest)
    if re.fullmatch(PROFILE_NAME, name) is None:
        raise UsageError(
            "this is not a profile's name",
            expected="NAME@sha256:<hex> with a name of lower-case letters and digits",
            found=repr(name),
        )
    return name, digest


def parse_request(text: str, lock: Lockfile | None = None) -> Request:
    """What `text` asks for; with a `lock` it must be what that says.

    Raises `UsageError`, `NotFoundError` for what is not known, and `VerificationError` where the
    argument and the lock contradict each other.
    """
    name, digest = split_identity(text)
    if lock is not None:
        return _locked(text, name, digest, lock)
    if digest is not None:
        known = _known_digest(name)
        return Request(text, name, digest if digest == known else None, None, digest)
    try:
        profile = catalogue.find_profile(text)
    except NotFoundError:
        if is_digest(text):
            return Request(text, profile=text)
        raise
    return Request(text, profile.name, profile.digest)


def _locked(text: str, name: str, digest: str | None, lock: Lockfile) -> Request:
    asked = digest
    if is_digest(text):
        asked, entry, found = text, lock.find(None, text), None
        found = next((key for key, value in lock.entries.items() if value is entry), None)
    elif catalogue.is_path(text):
        profile = catalogue.find_profile(text)
        asked, found = profile.digest, profile.name
        entry = lock.find(found)
    else:
        entry, found = lock.find(name), name
    if entry is None:
        raise NotFoundError(
            f"the lock has no entry for {text}",
            expected="one of: " + (", ".join(sorted(lock.entries)) or "(it is empty)"),
            remedy=f"pull once without --locked, which adds it: kvreg pull {text}",
        )
    if asked not in (None, entry.profile, entry.manifest):
        raise VerificationError(
            f"{text} is not what the lock has for {found}",
            expected=f"profile {entry.profile}, artifact {entry.manifest}",
            found=asked,
            remedy="pull without --locked to take it and to renew the lock",
        )
    return Request(text, found, entry.profile, entry.manifest, None, entry)


def _known_digest(name: str) -> str | None:
    try:
        return catalogue.find_profile(name).digest
    except NotFoundError:
        return None
