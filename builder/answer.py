"""A build that was made before: found in this checkout or in a registry, and taken as it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.cache import storage_errors
from builder.key import BuildKey
from builder.provenance import MEDIA_TYPE_RECORD
from builder.record import SCHEMA
from kvreg.errors import KvregError, VerificationError
from kvreg.model.oci import MEDIA_TYPE_WHEEL, Descriptor, Manifest
from kvreg.model.profile import Profile, profile_from_canonical
from registry.store import Store, read_small

if TYPE_CHECKING:
    from kvreg.publickey import PublicKey

Say = Callable[[str], None]


def same_build(record: dict[str, Any], key: BuildKey) -> bool:
    """Whether a record is of a build with this key; older records name none."""
    return (record.get("key") or {}).get("digest") == key.digest


def fetch_answer(
    store: Store,
    profile: Profile,
    key: BuildKey,
    folder: Path,
    *,
    keys: Sequence[PublicKey] = (),
    say: Say,
) -> dict[str, Any] | None:
    """Put the wheel that was published for `key` into `folder`; its record, None without one.

    Every byte is verified against the artifact, and the record against the wheel. With `keys`, one
    of them must have signed. Raises VerificationError for what is not as it says it is,
    NetworkError and StorageError.
    """
    found = store.resolve(key.tag)
    if found is None:
        say(f"{store.location} has no build with this key ({key.tag})")
        return None
    if keys:
        from kvreg.signatures import require_signature
        from registry.signatures import StoreSignatures

        require_signature(StoreSignatures(store), found.digest, keys, store.location)
    manifest = Manifest.parse(store.fetch_manifest(found.digest))
    published = profile_from_canonical(read_small(store, manifest.config))
    record = _record(store, found, key)
    if published.build_digest != profile.build_digest or record is None:
        raise VerificationError(
            f"{key.tag} of {store.location} is not what its tag says",
            expected=f"the build {profile.build_digest}",
            found=f"the build {published.build_digest}" if record else "no record of this key",
            remedy="build it anew: --again; and find out who set the tag",
        )
    wheel = _wheel(manifest, profile, record)
    target = folder / str(wheel.title)
    say(f"taking {wheel.title} from {store.location} ({found.digest[:19]})")
    with storage_errors("write", target):
        folder.mkdir(parents=True, exist_ok=True)
        store.fetch_blob(wheel, target)
        target.chmod(0o644)
    return record


def _record(store: Store, subject: Descriptor, key: BuildKey) -> dict[str, Any] | None:
    """The record of the build, among the artifact's referrers."""
    for referrer in store.referrers(subject.digest, MEDIA_TYPE_RECORD):
        try:
            manifest = Manifest.parse(store.fetch_manifest(referrer.digest))
            raw = read_small(store, manifest.layers[0])
            record = json.loads(raw)
        except (KvregError, ValueError, IndexError):
            continue  # somebody's referrer that is no record: the right one may follow
        if isinstance(record, dict) and record.get("schema") == SCHEMA and same_build(record, key):
            return record
    return None


def _wheel(manifest: Manifest, profile: Profile, record: dict[str, Any]) -> Descriptor:
    layers = [
        layer
        for layer in manifest.layers
        if layer.media_type == MEDIA_TYPE_WHEEL and layer.role == profile.runtime.role
    ]
    facts = record["wheel"]
    right = [
        layer
        for layer in layers
        if layer.digest == f"sha256:{facts['sha256']}" and layer.title == facts["filename"]
    ]
    if len(right) != 1:
        raise VerificationError(
            "the artifact's wheel is not the one of its build record",
            expected=f"{facts['filename']} sha256:{facts['sha256']}",
            found=", ".join(f"{layer.title} {layer.digest}" for layer in layers) or "no wheel",
        )
    return right[0]
