"""``kvreg.lock``: which artifact of a profile was pulled, so that the next one is the same.

Written by ``kvreg pull``, kept with the notebook or project, obeyed by ``--locked``::

    {
      "profiles": {
        "t4x2-cu128": {
          "blobs": {"vllm-0.18.1-cp312-abi3-linux_x86_64.whl": "sha256:..."},
          "manifest": "sha256:...",
          "profile": "sha256:..."
        }
      },
      "schema": 1
    }

Indented, sorted and ending in a newline: the same content is always the same bytes, and a change is
a line. It names no place: any store that has the digests will do.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvreg.errors import NotFoundError, VerificationError
from kvreg.files import write_atomically
from kvreg.home import Home
from kvreg.model.digest import is_digest
from kvreg.model.oci import Manifest, parse_json

SCHEMA = 1
LOCK_FILE = "kvreg.lock"


@dataclass(frozen=True)
class Locked:
    """One profile's artifact. `blobs` are the digests of the manifest's layers by file name."""

    profile: str
    manifest: str
    blobs: Mapping[str, str] = field(hash=False)

    def to_dict(self) -> dict[str, Any]:
        """The entry as it stands in the file."""
        return {
            "blobs": dict(sorted(self.blobs.items())),
            "manifest": self.manifest,
            "profile": self.profile,
        }


@dataclass(frozen=True)
class Lockfile:
    """The entries of a lock file by profile name."""

    entries: Mapping[str, Locked] = field(default_factory=dict, hash=False)

    def find(self, name: str | None, profile_digest: str | None = None) -> Locked | None:
        """The entry of a profile's name, or of its digest where no name is known."""
        if name is not None:
            return self.entries.get(name)
        return next(
            (entry for entry in self.entries.values() if entry.profile == profile_digest), None
        )

    def with_entry(self, name: str, entry: Locked) -> "Lockfile":
        """The same with one entry added or replaced."""
        return Lockfile({**self.entries, name: entry})

    def digests(self) -> frozenset[str]:
        """Every digest that is locked."""
        return frozenset(
            digest
            for entry in self.entries.values()
            for digest in (entry.profile, entry.manifest, *entry.blobs.values())
        )

    def to_bytes(self) -> bytes:
        """The file's content.

        >>> Lockfile().to_bytes()
        b'{\\n  "profiles": {},\\n  "schema": 1\\n}\\n'
        """
        tree = {
            "profiles": {name: entry.to_dict() for name, entry in self.entries.items()},
            "schema": SCHEMA,
        }
        return (json.dumps(tree, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()

    @classmethod
    def parse(cls, raw: bytes, where: str) -> "Lockfile":
        """Read the file's content (untrusted); `VerificationError` says what is wrong with it."""
        tree = parse_json(raw, where)
        if not isinstance(tree, dict) or tree.get("schema") != SCHEMA:
            raise _malformed(where, f"schema {SCHEMA}", tree)
        profiles = tree.get("profiles")
        if not isinstance(profiles, dict) or tree.keys() != {"profiles", "schema"}:
            raise _malformed(where, "the keys profiles and schema", sorted(tree))
        return cls({name: _entry(entry, f"{where}: {name}") for name, entry in profiles.items()})


def layer_digests(manifest: Manifest) -> dict[str, str]:
    """The digests of a manifest's layers by file name, where one has none by its media type."""
    digests: dict[str, str] = {}
    for layer in manifest.layers:
        name = layer.title or layer.media_type
        digests[f"{name} {layer.digest}" if name in digests else name] = layer.digest
    return digests


def read_lockfile(path: Path, *, required: bool = False) -> Lockfile:
    """Read a lock file; an absent one is empty, or a `NotFoundError` where it is required."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        if required:
            raise NotFoundError(
                f"there is no lock file {path}",
                remedy="pull once without --locked, which writes it, or name another with --lock",
            ) from None
        return Lockfile()
    return Lockfile.parse(raw, str(path))


def lock_profile(path: Path, name: str, entry: Locked, home: Home) -> bool:
    """Put an entry into the file; whether that changed it. Other entries stay as they are.

    Written to a temporary file and renamed; two pulls at once both get their entry in.
    """
    key = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]
    with home.lock(f"lockfile-{key}"):
        old = read_lockfile(path)
        if old.entries.get(name) == entry:
            return False
        write_atomically(path, old.with_entry(name, entry).to_bytes())
        return True


def _entry(value: object, where: str) -> Locked:
    if not isinstance(value, dict) or value.keys() != {"blobs", "manifest", "profile"}:
        raise _malformed(where, "the keys blobs, manifest and profile", value)
    blobs = value["blobs"]
    if not isinstance(blobs, dict):
        raise _malformed(where, "blobs by file name", blobs)
    for digest in (value["profile"], value["manifest"], *blobs.values()):
        if not is_digest(digest):
            raise _malformed(where, "sha256: and 64 lower-case hex digits", digest)
    return Locked(value["profile"], value["manifest"], blobs)


def _malformed(where: str, expected: str, found: object) -> VerificationError:
    return VerificationError(
        f"the lock file {where} is malformed",
        expected=expected,
        found=repr(found)[:200],
        remedy="take it from version control, or delete it and pull without --locked",
    )
