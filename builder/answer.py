"""A build that was made before: found in this checkout or in a registry, and taken as it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.bill import bill_of_materials
from builder.cache import storage_errors
from builder.files import write_bytes, write_json
from builder.key import BuildKey
from builder.product import (
    AUDIT,
    PAGE,
    RECORD,
    SBOM,
    UNFINISHED,
    Plan,
    Product,
    read_product,
    replace_finished,
)
from builder.provenance import MEDIA_TYPE_RECORD
from builder.record import SCHEMA, page, profile_facts
from kvreg.errors import (
    ContractError,
    KvregError,
    NotFoundError,
    UsageError,
    VerificationError,
)
from kvreg.model.oci import MEDIA_TYPE_WHEEL, Descriptor, Manifest
from kvreg.model.profile import Profile, profile_from_canonical
from registry.store import Store, read_small

if TYPE_CHECKING:
    from kvreg.publickey import PublicKey

Say = Callable[[str], None]


def same_build(record: dict[str, Any], key: BuildKey) -> bool:
    """Whether a record is of a build with this key; older records name none."""
    return (record.get("key") or {}).get("digest") == key.digest


def find_product(
    plan: Plan, store: Store | None, *, keys: Sequence[PublicKey] = (), say: Say
) -> Product | None:
    """The product when it was made before from the same inputs, recipe and toolchain.

    The finished build of this checkout, else what `store` has for the key, which then becomes the
    finished build; None when there is neither. With `keys`, one of them must have signed what the
    store has. Raises VerificationError for bytes that are not what they should be.
    """
    key = plan.key
    if key is None:
        return None
    with suppress(NotFoundError, ContractError, UsageError):
        product = read_product(plan.checkout, plan.profile.name)
        if same_build(product.record, key):
            say("nothing changed since the finished build")
            return product
    if store is None:
        return None
    out = plan.checkout.build_folder(plan.profile.name)
    fresh = out / UNFINISHED
    shutil.rmtree(fresh, ignore_errors=True)
    record = fetch_answer(store, plan.profile, key, fresh, keys=keys, say=say)
    if record is None:
        return None
    # The overlay may have changed since; the wheel and its audit do not depend on it.
    record = {**record, "profile": profile_facts(plan.profile)}
    replace_finished(fresh, out)
    write_json(out / RECORD, record)
    write_json(out / AUDIT, record["audit"])
    write_bytes(out / SBOM, bill_of_materials(plan.profile, plan.folder, record, embedded=False))
    write_bytes(out / PAGE, page(record).encode())
    return read_product(plan.checkout, plan.profile.name)


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
