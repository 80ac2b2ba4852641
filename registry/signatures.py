"""Signatures as a store holds them: how they are found, and the manifest of a signature tag."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvreg.model.canonical import canonical_json
from kvreg.model.oci import MEDIA_TYPE_MANIFEST, Descriptor, Manifest
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
