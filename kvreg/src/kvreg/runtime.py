"""Staged runtimes and their ``runtime.json``: what was staged, from where, by whom."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvreg.errors import KvregError, NotFoundError, VerificationError
from kvreg.home import Home
from kvreg.model.canonical import canonical_json
from kvreg.model.digest import is_digest, sha256_bytes
from kvreg.model.profile import Profile, profile_from_canonical

if TYPE_CHECKING:
    from kvreg.signatures import Signature

SCHEMA = 1
RUNTIME_FILE = "runtime.json"
PROFILE_FILE = "profile.json"
SITE = "site"
OVERLAY = "overlay"
OVERLAY_LOCK = "overlay.lock"


@dataclass(frozen=True)
class WheelEntry:
    """One staged wheel: `sha256` is of the wheel file, `record_sha256` of its staged RECORD."""

    filename: str
    name: str
    version: str
    role: str
    sha256: str
    record: str
    record_sha256: str


@dataclass(frozen=True)
class Runtime:
    """A staged runtime. `files` and `bytes` count what lies in `site` and in `overlay`.

    `signature` is the one that was checked when it was pulled; None when no key was required.
    """

    folder: Path
    profile_name: str
    profile_digest: str
    manifest_digest: str
    reference: str
    wheels: tuple[WheelEntry, ...]
    files: int
    bytes: int
    annotations: Mapping[str, str] = field(hash=False)
    kvreg_version: str
    created: str
    signature: "Signature | None" = None

    @property
    def site(self) -> Path:
        """The directory that goes on ``PYTHONPATH``."""
        return self.folder / SITE

    @property
    def overlay(self) -> Path:
        """The directory of the overlay's wheels; there is none when the profile has no overlay."""
        return self.folder / OVERLAY

    def place(self, role: str) -> Path:
        """Where wheels of a role are staged."""
        return self.overlay if role == "overlay" else self.site

    @property
    def places(self) -> tuple[Path, ...]:
        """The directories that hold staged wheels, in the order of their precedence."""
        return tuple(dict.fromkeys(self.place(wheel.role) for wheel in self.wheels))

    def to_dict(self) -> dict[str, Any]:
        """The content of ``runtime.json``; the folder is where that file lies."""
        return {
            "schema": SCHEMA,
            "profile": {"name": self.profile_name, "digest": self.profile_digest},
            "manifest": {"digest": self.manifest_digest, "annotations": dict(self.annotations)},
            "signature": self.signature.to_dict() if self.signature else None,
            "reference": self.reference,
            "wheels": [asdict(wheel) for wheel in self.wheels],
            "files": self.files,
            "bytes": self.bytes,
            "kvreg": self.kvreg_version,
            "created": self.created,
        }

    def signed(self, signature: "Signature") -> "Runtime":
        """The same runtime with a signature that was checked later, also on the disk."""
        found = replace(self, signature=signature)
        path = self.folder / RUNTIME_FILE
        temporary = path.with_name(f".{RUNTIME_FILE}.{os.getpid()}")
        try:
            temporary.write_text(found._text(), encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        return found

    def write(self, profile: Profile) -> None:
        """Write ``runtime.json``, and the profile beside it."""
        (self.folder / RUNTIME_FILE).write_text(self._text(), encoding="utf-8")
        (self.folder / PROFILE_FILE).write_bytes(profile.canonical())

    def _text(self) -> str:
        tree = self.to_dict()
        # Not against an attacker, who could compute it as well: a flipped bit is found and named.
        tree["digest"] = _own_digest(tree)
        return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"

    def profile(self) -> Profile:
        """The profile that the runtime was staged for; `VerificationError` if it was changed."""
        try:
            raw = (self.folder / PROFILE_FILE).read_bytes()
        except FileNotFoundError:
            raise _damaged(self.folder, f"{PROFILE_FILE} is missing") from None
        if sha256_bytes(raw) != self.profile_digest:
            raise _damaged(self.folder, f"{PROFILE_FILE} was changed")
        return profile_from_canonical(raw)


def read_runtime(folder: Path) -> Runtime:
    """Read a staged runtime; `NotFoundError` if there is none, `VerificationError` if damaged."""
    path = folder / RUNTIME_FILE
    try:
        tree = json.loads(path.read_bytes())
        if tree["schema"] != SCHEMA:
            raise _damaged(folder, f"{RUNTIME_FILE} has schema {tree['schema']}")
        if tree.pop("digest") != _own_digest(tree):
            raise _damaged(folder, f"{RUNTIME_FILE} was changed")
        runtime = Runtime(
            folder=folder,
            profile_name=str(tree["profile"]["name"]),
            profile_digest=tree["profile"]["digest"],
            manifest_digest=tree["manifest"]["digest"],
            reference=str(tree["reference"]),
            wheels=tuple(WheelEntry(**wheel) for wheel in tree["wheels"]),
            files=int(tree["files"]),
            bytes=int(tree["bytes"]),
            annotations=dict(tree["manifest"]["annotations"]),
            kvreg_version=str(tree["kvreg"]),
            created=str(tree["created"]),
            # Runtimes that an older client staged have none.
            signature=_signature(found) if (found := tree.get("signature")) else None,
        )
    except FileNotFoundError:
        raise NotFoundError(f"there is no staged runtime in {folder}") from None
    except (ValueError, LookupError, TypeError) as error:
        raise _damaged(folder, f"{RUNTIME_FILE} cannot be read: {error}") from None
    if not is_digest(runtime.profile_digest) or not is_digest(runtime.manifest_digest):
        raise _damaged(folder, f"{RUNTIME_FILE} has a malformed digest")
    return runtime


def _signature(tree: dict[str, Any]) -> "Signature":
    from kvreg.signatures import Signature  # few runtimes have one

    return Signature.from_dict(tree)


def _own_digest(tree: Mapping[str, Any]) -> str:
    """The digest of what ``runtime.json`` says besides it."""
    return sha256_bytes(canonical_json(tree))


def staged_folders(home: Home) -> Iterator[Path]:
    """The folders of all runtimes in a home; those that are being made are not among them."""
    if home.runtimes.is_dir():
        for folder in sorted(home.runtimes.iterdir()):
            if folder.is_dir() and not folder.name.startswith("."):
                yield folder


def readable_runtimes(home: Home) -> Iterator[Runtime]:
    """All staged runtimes but damaged ones, which must not keep the others from being used."""
    for folder in staged_folders(home):
        with contextlib.suppress(KvregError):
            yield read_runtime(folder)


def _damaged(folder: Path, what: str) -> VerificationError:
    return VerificationError(
        f"the staged runtime in {folder} is damaged: {what}", remedy="pull the profile again"
    )
