"""The two formats in which cosign keeps a signature with its artifact, as bytes and nothing else.

*Simple signing*: a JSON payload names the artifact's digest; it is a layer of the manifest tagged
``sha256-<hex>.sig``, and the layer's annotation holds the signature of the payload's bytes.

*Bundle* (cosign 3): a JSON bundle is the layer of a referrer of the artifact. It holds a DSSE
envelope with an in-toto statement, whose subject is the artifact's digest.

What is parsed here is untrusted: `VerificationError` for what is not exactly of these forms. No
signature is checked here: a `Claim` says what was signed, and by whom is another question.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvreg.errors import VerificationError
from kvreg.model.canonical import canonical_json
from kvreg.model.digest import is_digest, parse_digest
from kvreg.model.oci import parse_json

MEDIA_TYPE_SIMPLE_SIGNING = "application/vnd.dev.cosign.simplesigning.v1+json"
MEDIA_TYPE_BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
MEDIA_TYPE_STATEMENT = "application/vnd.in-toto+json"
BUNDLE_PREFIX = "application/vnd.dev.sigstore.bundle"
ANNOTATION_SIGNATURE = "dev.cosignproject.cosign/signature"
ANNOTATION_CONTENT = "dev.sigstore.bundle.content"
ANNOTATION_PREDICATE = "dev.sigstore.bundle.predicateType"

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_SIGNATURE = "https://sigstore.dev/cosign/sign/v1"
"""Predicate of a statement that says nothing but "this artifact is signed"."""

_STATEMENT_TYPES = (STATEMENT_TYPE, "https://in-toto.io/Statement/v0.1")
_CONTAINER_TYPES = ("cosign container image signature", PREDICATE_SIGNATURE)


@dataclass(frozen=True)
class Claim:
    """Something signed: the exact `message` bytes, their `signature` (DER of ECDSA), and what the
    message says. `digests` are the artifacts that it is about; `predicate` is the type of its
    statement, `PREDICATE_SIGNATURE` for a plain signature.
    """

    message: bytes
    signature: bytes
    digests: frozenset[str]
    predicate: str


def signature_tag(digest: str) -> str:
    """The tag under which cosign keeps the simple-signing signatures of `digest`.

    >>> signature_tag("sha256:" + "0" * 64) == "sha256-" + "0" * 64 + ".sig"
    True
    """
    return f"sha256-{parse_digest(digest)}.sig"


def is_signature_tag(tag: str) -> bool:
    """Whether `tag` is one that `signature_tag` makes."""
    return tag.endswith(".sig") and is_digest(tag.removesuffix(".sig").replace("-", ":", 1))


def simple_payload(digest: str, identity: str) -> bytes:
    """The simple-signing payload for an artifact; `identity` is where it was when it was signed.

    Nobody checks the identity, so that a signature stays good for copies.
    """
    parse_digest(digest)
    return canonical_json(
        {
            "critical": {
                "identity": {"docker-reference": identity},
                "image": {"docker-manifest-digest": digest},
                "type": _CONTAINER_TYPES[0],
            },
            "optional": None,
        }
    )


def parse_simple(payload: bytes, annotations: Mapping[str, str]) -> Claim:
    """A layer of a simple-signing manifest: its bytes and the annotations of its descriptor."""
    critical = _member(_object(parse_json(payload, "payload"), "payload"), "critical")
    digest = _member(critical, "image").get("docker-manifest-digest")
    if not is_digest(digest):
        raise _malformed("payload: docker-manifest-digest", "sha256: and 64 hex digits", digest)
    if critical.get("type") not in _CONTAINER_TYPES:
        raise _malformed("payload: type", _CONTAINER_TYPES[0], critical.get("type"))
    signature = _base64(annotations.get(ANNOTATION_SIGNATURE), "the signature annotation")
    return Claim(payload, signature, frozenset({str(digest)}), PREDICATE_SIGNATURE)


def signature_statement(digest: str) -> bytes:
    """The in-toto statement by which cosign 3 signs an artifact."""
    return canonical_json(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"digest": {"sha256": parse_digest(digest)}}],
            "predicateType": PREDICATE_SIGNATURE,
            "predicate": {},
        }
    )


def parse_statement(raw: bytes) -> tuple[str, frozenset[str]]:
    """The predicate type of an in-toto statement, and the sha256 digests of its subjects."""
    statement = _object(parse_json(raw, "statement"), "statement")
    if statement.get("_type") not in _STATEMENT_TYPES:
        raise _malformed("statement: _type", STATEMENT_TYPE, statement.get("_type"))
    predicate = statement.get("predicateType")
    if not isinstance(predicate, str) or not predicate:
        raise _malformed("statement: predicateType", "a URI", predicate)
    found = set()
    for subject in _array(statement, "subject"):
        digests = subject.get("digest") if isinstance(subject, dict) else None
        value = digests.get("sha256") if isinstance(digests, dict) else None
        if isinstance(value, str) and is_digest(f"sha256:{value}"):
            found.add(f"sha256:{value}")
    return predicate, frozenset(found)


def envelope_message(payload: bytes, payload_type: str = MEDIA_TYPE_STATEMENT) -> bytes:
    """What a DSSE envelope's signature is over: the payload with its type and both lengths.

    >>> envelope_message(b"hello", "text/plain")
    b'DSSEv1 10 text/plain 5 hello'
    """
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def make_bundle(statement: bytes, signature: bytes, key_hint: str) -> bytes:
    """A bundle with a statement and the signature of its `envelope_message`.

    `key_hint` is the base64 of the sha256 of the public key's DER form, as cosign has it.
    """
    return canonical_json(
        {
            "mediaType": MEDIA_TYPE_BUNDLE,
            "verificationMaterial": {"publicKey": {"hint": key_hint}},
            "dsseEnvelope": {
                "payload": base64.b64encode(statement).decode("ascii"),
                "payloadType": MEDIA_TYPE_STATEMENT,
                "signatures": [{"sig": base64.b64encode(signature).decode("ascii")}],
            },
        }
    )


def parse_bundle(raw: bytes) -> Claim:
    """The claim of a bundle. What it holds for transparency logs is passed over."""
    bundle = _object(parse_json(raw, "bundle"), "bundle")
    if not str(bundle.get("mediaType")).startswith(BUNDLE_PREFIX):
        raise _malformed("bundle: mediaType", MEDIA_TYPE_BUNDLE, bundle.get("mediaType"))
    envelope = _member(bundle, "dsseEnvelope")
    if envelope.get("payloadType") != MEDIA_TYPE_STATEMENT:
        raise _malformed("bundle: payloadType", MEDIA_TYPE_STATEMENT, envelope.get("payloadType"))
    statement = _base64(envelope.get("payload"), "bundle: payload")
    signatures = _array(envelope, "signatures")
    # The bundle format has exactly one; with several it would be unclear which one counts.
    if len(signatures) != 1 or not isinstance(signatures[0], dict):
        raise _malformed("bundle: signatures", "exactly one", f"{len(signatures)} entries")
    signature = _base64(signatures[0].get("sig"), "bundle: sig")
    predicate, digests = parse_statement(statement)
    return Claim(envelope_message(statement), signature, digests, predicate)


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _malformed(where, "a JSON object", value)
    return value


def _member(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return _object(table.get(key), key)


def _array(table: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = table.get(key)
    if not isinstance(value, list):
        raise _malformed(key, "an array", value)
    return value


def _base64(value: object, where: str) -> bytes:
    try:
        if isinstance(value, str) and value:
            return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise _malformed(where, "base64", value)


def _malformed(where: str, expected: str, found: object) -> VerificationError:
    return VerificationError(f"{where} is malformed", expected=expected, found=repr(found)[:120])
