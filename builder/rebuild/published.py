"""A published artifact with its provenance and build record, as far as a rebuild needs them.

The provenance is believed as far as it can be checked: it is about this manifest and this wheel,
names this profile, and its record has the digest that it names. Whether it tells the truth is
what the rebuild finds out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.provenance import (
    BUILD_TYPE_ADOPT,
    BUILD_TYPE_COMPILE,
    BUILD_TYPE_THIN,
    MEDIA_TYPE_RECORD,
    PREDICATE_TYPE,
)
from kvreg.errors import KvregError, NotFoundError, Problem, VerificationError
from kvreg.model.digest import sha256_bytes
from kvreg.model.oci import (
    MEDIA_TYPE_PROFILE,
    MEDIA_TYPE_PROVENANCE,
    MEDIA_TYPE_RUNTIME,
    MEDIA_TYPE_WHEEL,
    Descriptor,
    Manifest,
)
from kvreg.model.profile import Profile, profile_from_canonical
from kvreg.model.signature import envelope_message, parse_statement
from kvreg.publickey import PublicKey
from kvreg.signatures import Signature, require_signature
from registry.signatures import StoreSignatures, signed_messages
from registry.store import Store, read_small
from registry.text import is_plain_name

_BUILD_TYPES = {"adopt": BUILD_TYPE_ADOPT, "thin": BUILD_TYPE_THIN}


@dataclass(frozen=True)
class Provenance:
    """A statement about one artifact; `digest` is that of its bytes.

    inputs: hex sha256 by what each is. recipe, builder: digests, None where the builder that wrote
    it did not name them. toolchain: its name; definition and image: digests; layers: those of the
    image. All None or empty where nothing was compiled.
    """

    digest: str
    started: str
    record: str | None
    inputs: Mapping[str, str]
    recipe: str | None
    builder: str | None
    toolchain: str | None = None
    definition: str | None = None
    image: str | None = None
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Published:
    """What is rebuilt. `record` is None when the one that the provenance names is not there."""

    location: str
    descriptor: Descriptor
    profile: Profile
    wheel: Descriptor
    provenance: Provenance
    record: Mapping[str, Any] | None
    signature: Signature | None

    @property
    def recipe(self) -> str | None:
        """Digest of the recipe; older provenances name it in the record's build key alone."""
        key = (self.record or {}).get("key") or {}
        return self.provenance.recipe or key.get("recipe")

    @property
    def unnamed(self) -> tuple[str, ...]:
        """What it does not name, so that nobody can tell whether it is the same here."""
        named = {"recipe": self.recipe, "builder": self.provenance.builder}
        return tuple(what for what, digest in named.items() if digest is None)


def read_published(store: Store, target: str, keys: Sequence[PublicKey] = ()) -> Published:
    """Read what the tag or digest `target` names.

    With `keys`, one of them must have signed the artifact and its provenance. Raises NotFoundError
    for what is absent, VerificationError for what is no runtime, or does not belong together.
    """
    found = store.resolve(target)
    if found is None:
        raise NotFoundError(
            f"{store.location} has no {target}", remedy=f"see: registry ls {store.location}"
        )
    signature, signed = None, None
    if keys:
        source = StoreSignatures(store)
        signature = require_signature(source, found.digest, keys, store.location)
        signed = signed_messages(store, found.digest, keys)
    manifest = Manifest.parse(store.fetch_manifest(found.digest))
    if (manifest.artifact_type, manifest.config.media_type) != (
        MEDIA_TYPE_RUNTIME,
        MEDIA_TYPE_PROFILE,
    ):
        raise VerificationError(
            f"{found.digest} of {store.location} is no runtime",
            expected=MEDIA_TYPE_RUNTIME,
            found=str(manifest.artifact_type),
        )
    profile = profile_from_canonical(read_small(store, manifest.config))
    wheel = _wheel(manifest, profile)
    provenance = _provenance(store, found, profile, wheel, signed)
    record = _record(store, found, provenance)
    return Published(store.location, found, profile, wheel, provenance, record, signature)


def _wheel(manifest: Manifest, profile: Profile) -> Descriptor:
    layers = [
        layer
        for layer in manifest.layers
        if layer.media_type == MEDIA_TYPE_WHEEL and layer.role == profile.runtime.role
    ]
    if len(layers) != 1 or not is_plain_name(layers[0].title or ""):
        raise VerificationError(
            "the artifact does not have exactly one wheel that was built",
            expected=f"one layer with the role {profile.runtime.role} and a file name",
            found=str(len(layers)),
        )
    return layers[0]


def _attached(store: Store, subject: Descriptor, kind: str) -> Iterator[bytes]:
    """The payloads of the referrers of one type; what cannot be read is passed over."""
    for referrer in store.referrers(subject.digest, kind):
        try:
            manifest = Manifest.parse(store.fetch_manifest(referrer.digest))
            yield read_small(store, manifest.layers[0])
        except (VerificationError, NotFoundError, IndexError):
            continue


def _provenance(
    store: Store,
    subject: Descriptor,
    profile: Profile,
    wheel: Descriptor,
    signed: frozenset[bytes] | None,
) -> Provenance:
    """The newest that fits: an artifact that was built twice to the same bytes has two."""
    found, problems = [], []
    for raw in _attached(store, subject, MEDIA_TYPE_PROVENANCE):
        where = f"provenance {sha256_bytes(raw)}"
        try:
            predicate, digests = parse_statement(raw)
        except VerificationError as error:
            problems.append(Problem(where, error.what))
            continue
        if predicate != PREDICATE_TYPE:
            continue
        if signed is not None and envelope_message(raw) not in signed:
            problems.append(Problem(where, "is not signed by a key that is accepted"))
            continue
        if wrong := digests ^ {subject.digest, wheel.digest}:
            expected = f"{subject.digest} and {wheel.digest}"
            problems.append(Problem(where, "is about something else", expected, ", ".join(wrong)))
            continue
        try:
            found.append(_read(raw, profile))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            problems.append(Problem(where, f"is not of a form that we know: {error!r}"))
        except KvregError as error:
            problems.append(Problem(where, error.what, error.expected, error.found))
    if found:
        return max(found, key=lambda p: (p.started, p.digest))
    if problems:
        raise VerificationError(
            f"no provenance of {subject.digest} can be used", problems=problems[:20]
        )
    raise NotFoundError(
        f"{subject.digest} of {store.location} has no provenance",
        expected=f"a referrer of type {MEDIA_TYPE_PROVENANCE} with predicate {PREDICATE_TYPE}",
        remedy="only what `builder publish` published can be rebuilt",
    )


def _read(raw: bytes, profile: Profile) -> Provenance:
    predicate = json.loads(raw)["predicate"]
    definition, run = predicate["buildDefinition"], predicate["runDetails"]
    external = definition["externalParameters"]
    kind = _BUILD_TYPES.get(profile.build.recipe, BUILD_TYPE_COMPILE)
    for what, wanted, got in (
        ("build type", kind, definition["buildType"]),
        ("profile", profile.digest, external["profile"]["digest"]),
        ("recipe", profile.build.recipe, external["recipe"]),
    ):
        if wanted != got:
            raise VerificationError(f"it names another {what}", expected=wanted, found=str(got))
    inputs: dict[str, str] = {}
    digests: dict[str, str] = {}
    image: Mapping[str, Any] = {}
    for item in definition["resolvedDependencies"]:
        sort, sha256 = item["annotations"]["kind"], item["digest"]["sha256"]
        if sort == "toolchain-image":
            image = item
        elif sort in ("builder", "recipe"):
            digests[sort] = f"sha256:{sha256}"
        elif sort != "base-image":
            inputs[str(item["name"])] = str(sha256)
    byproducts = {b["name"]: f"sha256:{b['digest']['sha256']}" for b in run["byproducts"]}
    notes = image.get("annotations", {})
    return Provenance(
        digest=sha256_bytes(raw),
        started=str(run["metadata"]["startedOn"]),
        record=byproducts.get("record.json"),
        inputs=inputs,
        recipe=digests.get("recipe"),
        builder=digests.get("builder"),
        toolchain=external["toolchain"] if kind == BUILD_TYPE_COMPILE else None,
        definition=notes.get("definition"),
        image=f"sha256:{image['digest']['sha256']}" if image else None,
        layers=tuple(notes.get("layers", ())),
    )


def _record(store: Store, subject: Descriptor, provenance: Provenance) -> Mapping[str, Any] | None:
    for raw in _attached(store, subject, MEDIA_TYPE_RECORD):
        if sha256_bytes(raw) == provenance.record:
            record = json.loads(raw)
            return record if isinstance(record, dict) else None
    return None
