"""Signatures as a store holds them: how they are found, and the manifest of a signature tag."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvreg.errors import NotFoundError, VerificationError
from kvreg.model.canonical import canonical_json
from kvreg.model.oci import MEDIA_TYPE_MANIFEST, Descriptor, Manifest
from kvreg.model.signature import BUNDLE_PREFIX, parse_bundle
from kvreg.publickey import PublicKey
from kvreg.sources import RawManifest
from registry.store import Store, read_small

_MEDIA_TYPE_CONFIG = "application/vnd.oci.image.config.v1+json"
_NO_TIME = "0001-01-01T00:00:00Z"


@dataclass(frozen=True)
class StoreSignatures:
    """A store as `kvreg.signatures` looks for signatures in it."""

    store: Store

    def manifest(self, target: str) -> RawManifest | None:
        """The manifest of a tag or digest, its bytes verified by the store."""
        found = self.store.resolve(target)
        if found is None:
            return None
        return RawManifest(self.store.fetch_manifest(found.digest), found.digest)

    def referrers(self, digest: str) -> Sequence[Descriptor]:
        """What refers to `digest`."""
        return self.store.referrers(digest)

    def read_small(self, descriptor: Descriptor) -> bytes:
        """A small blob."""
        return read_small(self.store, descriptor)


def simple_layers(store: Store, tag: str) -> tuple[Descriptor, ...]:
    """The simple-signing layers under a signature tag; none when there is no such tag."""
    found = store.resolve(tag)
    return () if found is None else Manifest.parse(store.fetch_manifest(found.digest)).layers


def push_simple(store: Store, tag: str, layers: Sequence[Descriptor]) -> Descriptor:
    """Let a signature tag name a manifest of these layers, whose blobs are there.

    Its config is an image config, as cosign writes it.
    """
    layers = tuple(dict.fromkeys(layers))
    config = canonical_json(
        {
            "architecture": "",
            "config": {},
            "created": _NO_TIME,
            "history": [{"created": _NO_TIME} for _ in layers],
            "os": "",
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
        }
    )
    described = Descriptor.of_bytes(_MEDIA_TYPE_CONFIG, config)
    store.push_blob(config, described)
    raw = Manifest(config=described, layers=layers).to_bytes()
    return store.push_manifest(raw, MEDIA_TYPE_MANIFEST, tag)


def signed_messages(store: Store, digest: str, keys: Sequence[PublicKey]) -> frozenset[bytes]:
    """What one of `keys` signed in statements about the artifact, as `envelope_message` has it.

    Such as its provenance. What cannot be read, or another key signed, is passed over.
    """
    found = set()
    for referrer in store.referrers(digest):
        try:
            layers = Manifest.parse(store.fetch_manifest(referrer.digest)).layers
            bundles = [layer for layer in layers if layer.media_type.startswith(BUNDLE_PREFIX)]
            claims = [parse_bundle(read_small(store, layer)) for layer in bundles]
        except (VerificationError, NotFoundError):
            continue
        for claim in claims:
            if digest in claim.digests and any(
                key.verifies(claim.message, claim.signature) for key in keys
            ):
                found.add(claim.message)
    return frozenset(found)
