"""What a manifest refers to, for every kind of manifest that a store may hold.

Our own artifacts are OCI image manifests; a store may hold indexes and Docker's older kinds beside
them, and copying or verifying must follow those as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvreg.errors import VerificationError
from kvreg.model.oci import (
    MEDIA_TYPE_INDEX,
    MEDIA_TYPE_MANIFEST,
    MEDIA_TYPE_RUNTIME,
    Descriptor,
    parse_json,
)
from registry.text import is_plain_name

DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"

IMAGE_TYPES = (MEDIA_TYPE_MANIFEST, DOCKER_MANIFEST)
INDEX_TYPES = (MEDIA_TYPE_INDEX, DOCKER_LIST)
MANIFEST_TYPES = IMAGE_TYPES + INDEX_TYPES


@dataclass(frozen=True)
class Content:
    """A manifest as a node: the blobs and manifests below it, and the subject above it.

    `config` is also the first of `blobs`. `descriptor` says what a store would say about the
    manifest: kind, digest, size, artifact type, and no annotations.
    """

    descriptor: Descriptor
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] = ()
    manifests: tuple[Descriptor, ...] = ()
    subject: Descriptor | None = None
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """Config and layers, each digest once."""
        found = ((self.config,) if self.config else ()) + self.layers
        return tuple({descriptor.digest: descriptor for descriptor in found}.values())

    @property
    def as_referrer(self) -> Descriptor:
        """How a list of referrers shows this manifest: with its type and its annotations."""
        found = self.descriptor
        kind = found.artifact_type or (self.config.media_type if self.config else None)
        return Descriptor(found.media_type, found.digest, found.size, dict(self.annotations), kind)


def parse_content(raw: bytes, media_type: str | None = None) -> Content:
    """Read the untrusted bytes of a manifest of any kind in `MANIFEST_TYPES`.

    `media_type` is what the store says; the bytes' own ``mediaType`` must not contradict it.
    `VerificationError` for anything that is malformed, larger than 4 MiB or of another kind.
    """
    table = parse_json(raw, "manifest")
    if not isinstance(table, dict):
        raise _malformed("manifest", "a JSON object", table)
    kind = _kind(table, media_type)
    if table.get("schemaVersion") != 2:
        raise _malformed("manifest: schemaVersion", "2", table.get("schemaVersion"))
    config = layers = manifests = ()
    if kind in INDEX_TYPES:
        manifests = _descriptors(table, "manifests")
    else:
        config = (Descriptor.from_dict(table.get("config")),)
        layers = _descriptors(table, "layers")
    subject = table.get("subject")
    return Content(
        descriptor=Descriptor.of_bytes(kind, raw, artifact_type=table.get("artifactType") or None),
        config=config[0] if config else None,
        layers=layers,
        manifests=manifests,
        subject=None if subject is None else Descriptor.from_dict(subject),
        annotations=_annotations(table),
    )


def check_titles(content: Content) -> None:
    """`VerificationError` when a file of a runtime has a title that could lead elsewhere.

    Tools that unpack artifacts write to the titles. What is not ours may use them as it likes.
    """
    if content.descriptor.artifact_type != MEDIA_TYPE_RUNTIME:
        return
    for layer in content.layers:
        if layer.title is not None and not is_plain_name(layer.title):
            raise VerificationError(
                f"{content.descriptor.digest} has a file whose title leads elsewhere",
                expected="a plain file name",
                found=repr(layer.title)[:200],
                remedy="whoever made this artifact does not mean well: do not use it",
            )


def _kind(table: Mapping[str, Any], media_type: str | None) -> str:
    inner = table.get("mediaType")
    if inner is not None and media_type is not None and inner != media_type:
        raise _malformed("manifest: mediaType", media_type, inner)
    kind = inner or media_type
    if kind is None:
        # The field is optional in OCI; index.json of old layouts and old manifests lack it.
        kind = MEDIA_TYPE_INDEX if "manifests" in table else MEDIA_TYPE_MANIFEST
    if kind not in MANIFEST_TYPES:
        raise _malformed("manifest: mediaType", " or ".join(MANIFEST_TYPES), kind)
    return str(kind)


def _descriptors(table: Mapping[str, Any], key: str) -> tuple[Descriptor, ...]:
    items = table.get(key)
    if not isinstance(items, list):
        raise _malformed(f"manifest: {key}", "an array", items)
    return tuple(Descriptor.from_dict(item) for item in items)


def _annotations(table: Mapping[str, Any]) -> Mapping[str, str]:
    found = table.get("annotations") or {}
    if not isinstance(found, dict) or not all(isinstance(item, str) for item in found.values()):
        raise _malformed("manifest: annotations", "an object of strings", found)
    return found


def _malformed(where: str, expected: str, found: object) -> VerificationError:
    return VerificationError(f"{where} is malformed", expected=expected, found=repr(found)[:200])
