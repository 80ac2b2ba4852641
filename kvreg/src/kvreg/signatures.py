"""Is an artifact signed, and by a key that counts? The same answer for every store.

Signatures lie where cosign puts them: under the tag ``sha256-<hex>.sig`` (cosign 1 and 2), and in
bundles that refer to the artifact (cosign 3). One good signature is enough; what is beside it,
whoever put it there, changes nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kvreg.errors import NotFoundError, Problem, VerificationError
from kvreg.model.oci import Descriptor, Manifest
from kvreg.model.signature import (
    BUNDLE_PREFIX,
    MEDIA_TYPE_SIMPLE_SIGNING,
    PREDICATE_SIGNATURE,
    Claim,
    parse_bundle,
    parse_simple,
    signature_tag,
)
from kvreg.publickey import PublicKey
from kvreg.sources import RawManifest

Form = Literal["bundle", "simple"]

_MAX_MANIFESTS = 200
_MAX_LAYERS = 100
_SHOWN = 20


class SignatureSource(Protocol):
    """Where an artifact and its signatures are. What is returned was verified by digest."""

    def manifest(self, target: str) -> RawManifest | None:
        """The manifest that a tag or digest names, None when there is no such manifest."""
        ...

    def referrers(self, digest: str) -> Sequence[Descriptor]:
        """The manifests whose subject is `digest`."""
        ...

    def read_small(self, descriptor: Descriptor) -> bytes:
        """A whole blob; `VerificationError` when it is too large for that."""
        ...


@dataclass(frozen=True)
class Candidate:
    """What may be a signature: its form, and digest or tag of the manifest that holds it.

    Either there is a `claim`, or `fault` says why it cannot be one.
    """

    form: Form
    manifest: str
    claim: Claim | None
    fault: str | None = None


@dataclass(frozen=True)
class Signature:
    """A good signature of an artifact: who signed (fingerprint of the key) and where it lies."""

    key: str
    form: Form
    manifest: str

    def to_dict(self) -> dict[str, str]:
        """As JSON-ready data."""
        return {"key": self.key, "form": self.form, "manifest": self.manifest}

    @classmethod
    def from_dict(cls, value: object) -> "Signature":
        """Read back `to_dict`; `TypeError` or `LookupError` for anything else."""
        if not isinstance(value, dict):
            raise TypeError("a signature is an object")
        form: Form = "bundle" if value["form"] == "bundle" else "simple"
        return cls(str(value["key"]), form, str(value["manifest"]))


def require_signature(
    source: SignatureSource, digest: str, keys: Sequence[PublicKey], location: str
) -> Signature:
    """The first good signature of the artifact `digest` by one of `keys`.

    Raises `VerificationError` that names every signature found and why it does not count.
    """
    problems = []
    for candidate in find_candidates(source, digest):
        key, reason = judge(candidate, digest, keys)
        if key is not None:
            return Signature(key.fingerprint, candidate.form, candidate.manifest)
        problems.append(Problem(f"{candidate.form} signature in {candidate.manifest}", reason))
    wanted = " or ".join(key.fingerprint for key in keys)
    if not problems:
        raise VerificationError(
            f"the artifact {digest} is not signed",
            expected=f"a signature by the key {wanted}",
            found=f"no signature in {location}",
            remedy="do not use it, or ask who published it to sign it: registry sign REF --key KEY",
        )
    raise VerificationError(
        f"no signature of the artifact {digest} is by a key that is accepted",
        expected=f"a signature by the key {wanted}",
        found=f"{len(problems)} that do not count",
        problems=problems[:_SHOWN],
        remedy="do not use it; if its signer changed keys, get the new public key from them",
    )


def judge(
    candidate: Candidate, digest: str, keys: Sequence[PublicKey]
) -> tuple[PublicKey | None, str]:
    """The key by which a candidate is a signature of the artifact `digest`, or None and why not."""
    claim = candidate.claim
    if claim is None:
        return None, candidate.fault or "it cannot be read"
    if claim.predicate != PREDICATE_SIGNATURE:
        return None, f"it attests {claim.predicate[:100]!r}, which is no signature of the artifact"
    if digest not in claim.digests:
        return None, f"it is of another artifact: {', '.join(sorted(claim.digests)) or 'none'}"
    for key in keys:
        if key.verifies(claim.message, claim.signature):
            return key, ""
    return None, "it is by another key, or was changed"


def find_candidates(source: SignatureSource, digest: str) -> Iterator[Candidate]:
    """Everything that may be a signature of `digest`, bundles first.

    What cannot be read is a candidate with a fault: it must not hide a good one beside it.
    """
    referrers: Sequence[Descriptor] = ()
    try:
        referrers = source.referrers(digest)[:_MAX_MANIFESTS]
    except VerificationError as error:
        yield Candidate("bundle", "the list of referrers", None, error.what)
    for referrer in referrers:
        yield from _bundles(source, referrer)
    yield from _simple(source, digest)


def _bundles(source: SignatureSource, referrer: Descriptor) -> Iterator[Candidate]:
    # The type in a list of referrers may be missing or wrong; the layers' types count.
    manifest, fault = _manifest(source, referrer.digest)
    if fault is not None and (referrer.artifact_type or "").startswith(BUNDLE_PREFIX):
        yield Candidate("bundle", referrer.digest, None, fault)
    for layer in _layers(manifest, BUNDLE_PREFIX):
        claim, fault = _claim(lambda raw, layer: parse_bundle(raw), source, layer)
        # A signed statement of another kind, such as a provenance, is no failed signature.
        if claim is None or claim.predicate == PREDICATE_SIGNATURE:
            yield Candidate("bundle", referrer.digest, claim, fault)


def _simple(source: SignatureSource, digest: str) -> Iterator[Candidate]:
    tag = signature_tag(digest)
    manifest, fault = _manifest(source, tag)
    if fault is not None:
        yield Candidate("simple", tag, None, fault)
    for layer in _layers(manifest, MEDIA_TYPE_SIMPLE_SIGNING):
        claim, fault = _claim(
            lambda raw, layer: parse_simple(raw, layer.annotations), source, layer
        )
        yield Candidate("simple", tag, claim, fault)


def _layers(manifest: Manifest | None, prefix: str) -> Sequence[Descriptor]:
    layers = manifest.layers[:_MAX_LAYERS] if manifest is not None else ()
    return [layer for layer in layers if layer.media_type.startswith(prefix)]


def _claim(
    parse: Callable[[bytes, Descriptor], Claim], source: SignatureSource, layer: Descriptor
) -> tuple[Claim | None, str | None]:
    """What a layer claims, or None and why it cannot be read."""
    try:
        return parse(source.read_small(layer), layer), None
    except (VerificationError, NotFoundError) as error:
        return None, error.what


def _manifest(source: SignatureSource, target: str) -> tuple[Manifest | None, str | None]:
    """A manifest; None with a reason when it is malformed, and without when it is absent."""
    try:
        found = source.manifest(target)
        return (None if found is None else Manifest.parse(found.raw)), None
    except (VerificationError, NotFoundError) as error:
        return None, error.what
