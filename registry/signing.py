"""Signing artifacts in the places and forms of cosign, with a key pair and no transparency log.

Two forms, each for the tools that look for it: a *bundle* that refers to the artifact (cosign 3,
and whatever follows referrers), and a *simple signing* layer under the tag ``sha256-<hex>.sig``
(cosign 1 and 2). The same key and artifact give the same bundle in every store.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from kvreg.errors import NetworkError, NotFoundError, UsageError
from kvreg.model.oci import EMPTY_BLOB, MEDIA_TYPE_MANIFEST, Descriptor, Manifest, empty_descriptor
from kvreg.model.signature import (
    ANNOTATION_CONTENT,
    ANNOTATION_PREDICATE,
    ANNOTATION_SIGNATURE,
    MEDIA_TYPE_BUNDLE,
    MEDIA_TYPE_SIMPLE_SIGNING,
    PREDICATE_SIGNATURE,
    envelope_message,
    make_bundle,
    parse_statement,
    signature_statement,
    signature_tag,
    simple_payload,
)
from kvreg.publickey import PublicKey
from kvreg.reference import RegistryReference, parse_reference
from kvreg.signatures import Form, find_candidates, judge
from registry.privatekey import PrivateKey
from registry.signatures import StoreSignatures, push_simple, simple_layers
from registry.store import Store

FORMS: tuple[Form, ...] = ("bundle", "simple")

_ROUNDS = 5


@dataclass(frozen=True)
class Signed:
    """Where the signatures of an artifact are: `forms` to the digests of their manifests.

    `added` are the forms that were not there before.
    """

    subject: Descriptor
    key: str
    forms: dict[Form, str]
    added: tuple[Form, ...]

    def to_dict(self) -> dict[str, object]:
        """As JSON-ready data."""
        return {
            "digest": self.subject.digest,
            "key": self.key,
            "signatures": dict(self.forms),
            "added": list(self.added),
        }


def sign(store: Store, reference: str, key: PrivateKey, forms: Sequence[Form] = FORMS) -> Signed:
    """Sign what the tag or digest `reference` names; a form that this key signed already is left.

    `NotFoundError` when the store has no such manifest.
    """
    subject = _subject(store, reference)
    store.prepare()
    places, added = dict(_present(store, subject.digest, key.public)), []
    for form in forms:
        if form not in places:
            add = _add_bundle if form == "bundle" else _add_simple
            places[form] = add(store, subject, key)
            added.append(form)
    return Signed(subject, key.public.fingerprint, places, tuple(added))


def attest(store: Store, reference: str, statement: bytes, key: PrivateKey) -> Descriptor:
    """Sign an in-toto statement about an artifact and attach it as a bundle.

    It is what `cosign verify-attestation --key` reads. `UsageError` when the statement is not
    about the artifact, `VerificationError` when it is no statement, `NotFoundError` as `sign`.
    """
    subject = _subject(store, reference)
    predicate, digests = parse_statement(statement)
    if subject.digest not in digests:
        raise UsageError(
            f"the statement is not about {subject.digest}",
            expected="a subject with this sha256",
            found=", ".join(sorted(digests)) or "no sha256",
        )
    if predicate == PREDICATE_SIGNATURE:
        raise UsageError("the statement is a signature itself", remedy="use: registry sign REF")
    store.prepare()
    return _push_bundle(store, subject, statement, predicate, key)


def _subject(store: Store, reference: str) -> Descriptor:
    found = store.resolve(reference)
    if found is None:
        raise NotFoundError(f"{store.location} has no {reference}")
    return Descriptor(found.media_type, found.digest, found.size)


def _present(store: Store, digest: str, key: PublicKey) -> dict[Form, str]:
    """The forms in which the key has signed already, with the manifests that hold them."""
    return {
        candidate.form: candidate.manifest
        for candidate in find_candidates(StoreSignatures(store), digest)
        if judge(candidate, digest, (key,))[0] is not None
    }


def _add_bundle(store: Store, subject: Descriptor, key: PrivateKey) -> str:
    statement = signature_statement(subject.digest)
    return _push_bundle(store, subject, statement, PREDICATE_SIGNATURE, key).digest


def _push_bundle(
    store: Store, subject: Descriptor, statement: bytes, predicate: str, key: PrivateKey
) -> Descriptor:
    raw = make_bundle(statement, key.sign(envelope_message(statement)), key.public.hint)
    layer = Descriptor.of_bytes(MEDIA_TYPE_BUNDLE, raw)
    manifest = Manifest(
        config=empty_descriptor(),
        layers=(layer,),
        artifact_type=MEDIA_TYPE_BUNDLE,
        # No time, unlike cosign: the same signature has the same digest wherever it is made.
        annotations={ANNOTATION_CONTENT: "dsse-envelope", ANNOTATION_PREDICATE: predicate},
        subject=subject,
    )
    store.push_blob(EMPTY_BLOB, manifest.config)
    store.push_blob(raw, layer)
    return store.push_manifest(manifest.to_bytes(), MEDIA_TYPE_MANIFEST)


def _add_simple(store: Store, subject: Descriptor, key: PrivateKey) -> str:
    """Add a layer to the manifest of the signature tag, beside what others signed.

    There is no conditional write: a signer that read the manifest before us and writes after us
    drops our layer, so we look again.
    """
    payload = simple_payload(subject.digest, _identity(store))
    signature = base64.b64encode(key.sign(payload)).decode("ascii")
    layer = Descriptor.of_bytes(
        MEDIA_TYPE_SIMPLE_SIGNING, payload, {ANNOTATION_SIGNATURE: signature}
    )
    store.push_blob(payload, layer)
    tag = signature_tag(subject.digest)
    for _ in range(_ROUNDS):
        push_simple(store, tag, (*simple_layers(store, tag), layer))
        if layer in simple_layers(store, tag):
            return tag
    raise NetworkError(
        f"{store.location}: other signers kept replacing {tag}",
        remedy="run the same command again when they have ended",
    )


def _identity(store: Store) -> str:
    """What the payload calls the repository; a layout's path would tell of the machine."""
    reference = parse_reference(store.location)
    if isinstance(reference, RegistryReference):
        return f"{reference.host}/{reference.repository}"
    return ""
