"""Bytes and artifacts for tests."""

import random

from kvreg.model.oci import EMPTY_BLOB, Descriptor, Manifest, empty_descriptor
from registry.store import Store

OCTETS = "application/octet-stream"


def blob(size: int, seed: int = 1) -> tuple[bytes, Descriptor]:
    """Reproducible bytes and their descriptor."""
    data = random.Random(seed).randbytes(size)
    return data, Descriptor.of_bytes(OCTETS, data)


def push_artifact(
    store: Store, tag: str | None = None, seed: int = 1, size: int = 1000
) -> Manifest:
    """A small artifact of one layer."""
    data, layer = blob(size, seed)
    manifest = Manifest(empty_descriptor(), (layer,), artifact_type="application/x-test")
    store.push_blob(EMPTY_BLOB, manifest.config)
    store.push_blob(data, layer)
    store.push_manifest(manifest.to_bytes(), tag=tag)
    return manifest


def read(store: Store, descriptor: Descriptor) -> bytes:
    """A whole blob."""
    return b"".join(store.read_blob(descriptor))
