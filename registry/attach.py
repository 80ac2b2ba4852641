"""Attaching: an attestation becomes a manifest whose subject is the artifact that it is about."""

from collections.abc import Mapping
from pathlib import Path

from kvreg.errors import NotFoundError, UsageError
from kvreg.model.oci import (
    ANNOTATION_TITLE,
    EMPTY_BLOB,
    MEDIA_TYPE_MANIFEST,
    Descriptor,
    Manifest,
    empty_descriptor,
)
from registry.store import Store
from registry.stream import BlobSource, HashedFile, hash_file
from registry.text import is_plain_name


def attach(
    store: Store,
    subject: Descriptor,
    artifact_type: str,
    payload: BlobSource,
    title: str,
    annotations: Mapping[str, str] | None = None,
) -> Descriptor:
    """Put `payload` into `store` as a referrer of `subject`; the referrer's manifest.

    The payload is the only layer, of media type `artifact_type`, and its title is `title`;
    `annotations` are the manifest's, and lists of referrers show them. The same arguments give
    the same digest in every store, and attaching twice changes nothing. Whether the store lists
    the referrer by the referrers API, the tag schema or its index is the store's affair.

    `NotFoundError` when the store does not have the subject.
    """
    if not is_plain_name(title):
        raise UsageError("an attestation's title is a plain file name", found=repr(title))
    store.prepare()
    if store.resolve(subject.digest) is None:
        raise NotFoundError(
            f"{store.location} has nothing to attach to",
            expected=subject.digest,
            remedy="publish or copy the artifact first",
        )
    layer = _describe(payload, artifact_type, title)
    manifest = Manifest(
        config=empty_descriptor(),
        layers=(layer,),
        artifact_type=artifact_type,
        annotations=dict(annotations or {}),
        # As the distribution-spec compares subjects: by what they are, without annotations.
        subject=Descriptor(subject.media_type, subject.digest, subject.size),
    )
    store.push_blob(EMPTY_BLOB, manifest.config)
    store.push_blob(payload, layer)
    return store.push_manifest(manifest.to_bytes(), MEDIA_TYPE_MANIFEST)


def _describe(payload: BlobSource, media_type: str, title: str) -> Descriptor:
    annotations = {ANNOTATION_TITLE: title}
    if isinstance(payload, Path):
        payload = hash_file(payload)
    if isinstance(payload, HashedFile):
        return Descriptor(media_type, payload.digest, payload.size, annotations)
    return Descriptor.of_bytes(media_type, payload, annotations)
