"""Signatures for tests, good ones and such as an attacker would leave."""

import base64
from collections.abc import Callable
from pathlib import Path

from kvreg.model.oci import EMPTY_BLOB, Descriptor, Manifest, empty_descriptor
from kvreg.model.signature import (
    ANNOTATION_SIGNATURE,
    MEDIA_TYPE_BUNDLE,
    MEDIA_TYPE_SIMPLE_SIGNING,
    envelope_message,
    make_bundle,
    signature_statement,
    signature_tag,
    simple_payload,
)
from registry.privatekey import PrivateKey, generate_key
from registry.signatures import push_simple, simple_layers
from registry.store import Store

OTHER = "sha256:" + "5" * 64

Attack = Callable[[Store, Descriptor, PrivateKey], None]


def write_public(key: PrivateKey, path: Path) -> Path:
    """The public half as a file."""
    path.write_text(key.public.pem)
    return path


def add_simple(store: Store, subject: Descriptor, payload: bytes, signature: bytes) -> None:
    """Put a layer under the signature tag of `subject`, whatever it is."""
    layer = Descriptor.of_bytes(
        MEDIA_TYPE_SIMPLE_SIGNING,
        payload,
        {ANNOTATION_SIGNATURE: base64.b64encode(signature).decode()},
    )
    store.push_blob(payload, layer)
    tag = signature_tag(subject.digest)
    push_simple(store, tag, (*simple_layers(store, tag), layer))


def add_bundle(store: Store, subject: Descriptor, raw: bytes) -> None:
    """Attach bytes as a bundle that refers to `subject`, whatever they are."""
    layer = Descriptor.of_bytes(MEDIA_TYPE_BUNDLE, raw)
    plain = Descriptor(subject.media_type, subject.digest, subject.size)
    manifest = Manifest(empty_descriptor(), (layer,), MEDIA_TYPE_BUNDLE, subject=plain)
    store.push_blob(EMPTY_BLOB, manifest.config)
    store.push_blob(raw, layer)
    store.push_manifest(manifest.to_bytes())


def bundle_of(statement: bytes, key: PrivateKey) -> bytes:
    """A bundle with a statement that `key` signed."""
    return make_bundle(statement, key.sign(envelope_message(statement)), key.public.hint)


def _another_key(store: Store, subject: Descriptor, key: PrivateKey) -> None:
    other = generate_key()
    payload = simple_payload(subject.digest, "")
    add_simple(store, subject, payload, other.sign(payload))
    add_bundle(store, subject, bundle_of(signature_statement(subject.digest), other))


def _another_digest(store: Store, subject: Descriptor, key: PrivateKey) -> None:
    payload = simple_payload(OTHER, "")
    add_simple(store, subject, payload, key.sign(payload))
    add_bundle(store, subject, bundle_of(signature_statement(OTHER), key))


def _moved_signature(store: Store, subject: Descriptor, key: PrivateKey) -> None:
    """The text is of this artifact, the signature of another one's."""
    signature = key.sign(simple_payload(OTHER, ""))
    add_simple(store, subject, simple_payload(subject.digest, ""), signature)
    signature = key.sign(envelope_message(signature_statement(OTHER)))
    statement = signature_statement(subject.digest)
    add_bundle(store, subject, make_bundle(statement, signature, key.public.hint))


def _truncated(store: Store, subject: Descriptor, key: PrivateKey) -> None:
    payload = simple_payload(subject.digest, "")
    add_simple(store, subject, payload, key.sign(payload)[:-5])
    add_simple(store, subject, payload[:-9], key.sign(payload))
    raw = bundle_of(signature_statement(subject.digest), key)
    add_bundle(store, subject, raw[: len(raw) // 2])


def _another_kind(store: Store, subject: Descriptor, key: PrivateKey) -> None:
    """The key signed something about the artifact, which is not to sign the artifact."""
    statement = signature_statement(subject.digest).replace(
        b"https://sigstore.dev/cosign/sign/v1", b"https://example.org/known-broken/v1"
    )
    add_bundle(store, subject, bundle_of(statement, key))


def _garbage(store: Store, subject: Descriptor, key: PrivateKey) -> None:
    for raw in (b"", b"{}", b"[" * 100_000, b"\xff\xfe", b'{"mediaType":1}'):
        add_bundle(store, subject, raw)
        add_simple(store, subject, raw, b"x")


ATTACKS: dict[str, Attack] = {
    "another key": _another_key,
    "another digest": _another_digest,
    "a signature moved from another artifact": _moved_signature,
    "truncated": _truncated,
    "another kind of statement": _another_kind,
    "garbage": _garbage,
}
