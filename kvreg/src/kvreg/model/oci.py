"""OCI image-spec 1.1 types: descriptors, image manifests and indexes, and our media types.

Everything that is parsed here may come from a hostile registry: `VerificationError` is raised for
what is not exactly of the expected shape. A digest is always of raw bytes, never of a
re-serialised value, so callers keep the bytes that they parsed.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvreg.errors import VerificationError
from kvreg.model.canonical import MAX_SAFE_INTEGER, canonical_json
from kvreg.model.digest import is_digest, sha256_bytes

MEDIA_TYPE_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
MEDIA_TYPE_INDEX = "application/vnd.oci.image.index.v1+json"
MEDIA_TYPE_EMPTY = "application/vnd.oci.empty.v1+json"
MEDIA_TYPE_RUNTIME = "application/vnd.kvreg.runtime.v1"
"""`artifactType` of a runtime artifact's manifest."""
MEDIA_TYPE_PROFILE = "application/vnd.kvreg.profile.v1+json"
MEDIA_TYPE_WHEEL = "application/vnd.kvreg.wheel.v1+zip"
MEDIA_TYPE_OVERLAY_LOCK = "application/vnd.kvreg.overlay-lock.v1+text"
MEDIA_TYPE_SBOM = "application/vnd.cyclonedx+json"
MEDIA_TYPE_PROVENANCE = "application/vnd.in-toto+json"
MEDIA_TYPE_EVIDENCE = "application/vnd.kvreg.evidence.v1+tar"

ANNOTATION_TITLE = "org.opencontainers.image.title"
ANNOTATION_CREATED = "org.opencontainers.image.created"
ANNOTATION_REF_NAME = "org.opencontainers.image.ref.name"
ANNOTATION_ROLE = "vnd.kvreg.role"
"""Role of a wheel layer: ``native``, ``probe`` or ``overlay``."""
ANNOTATION_UNPACKED_SIZE = "vnd.kvreg.unpacked-size"
"""Bytes of a wheel's unpacked members, in decimal: lets a client check the disk before it pulls."""
ANNOTATION_COMPUTE_CAPABILITIES = "vnd.kvreg.compute-capabilities"
"""What the imported CUDA modules are compiled for, parted by spaces: ``7.5 9.0a 12.0+PTX``."""
ANNOTATION_TOOLCHAIN_PREFIX = "vnd.kvreg.toolchain"
"""Annotations with this prefix say which toolchain really made the wheel."""

WHEEL_ROLES = ("native", "probe", "overlay")

MAX_MANIFEST_BYTES = 4 * 1024 * 1024
"""Registries may refuse larger manifests (distribution-spec), so nothing larger is read."""

EMPTY_BLOB = b"{}"

_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][\w!#$&^.+-]{0,126}/[A-Za-z0-9][\w!#$&^.+-]{0,126}", re.ASCII)


@dataclass(frozen=True)
class Descriptor:
    """A typed, sized, digested pointer to a blob or manifest. `size` is in bytes."""

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    artifact_type: str | None = None

    def __post_init__(self) -> None:
        _media_type(self.media_type, "mediaType")
        _digest(self.digest, "digest")
        _size(self.size, "size")
        _annotations(self.annotations, "annotations")
        if self.artifact_type is not None:
            _media_type(self.artifact_type, "artifactType")

    @property
    def title(self) -> str | None:
        """The file name annotation, if any (untrusted)."""
        return self.annotations.get(ANNOTATION_TITLE)

    @property
    def role(self) -> str | None:
        """The wheel role annotation, if any (untrusted)."""
        return self.annotations.get(ANNOTATION_ROLE)

    def to_dict(self) -> dict[str, Any]:
        """The descriptor as the JSON object of the image-spec."""
        result: dict[str, Any] = {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
        }
        if self.artifact_type is not None:
            result["artifactType"] = self.artifact_type
        if self.annotations:
            result["annotations"] = dict(self.annotations)
        return result

    @classmethod
    def from_dict(cls, value: object) -> "Descriptor":
        """Read an untrusted descriptor object; fields that we do not use are passed over."""
        table = _object(value, "descriptor")
        return cls(
            media_type=_media_type(table.get("mediaType"), "mediaType"),
            digest=_digest(table.get("digest"), "digest"),
            size=_size(table.get("size"), "size"),
            annotations=dict(_annotations(table.get("annotations", {}), "annotations")),
            artifact_type=table.get("artifactType") or None,
        )

    @classmethod
    def of_bytes(
        cls,
        media_type: str,
        data: bytes,
        annotations: Mapping[str, str] | None = None,
        artifact_type: str | None = None,
    ) -> "Descriptor":
        """Describe `data`."""
        digest = sha256_bytes(data)
        return cls(media_type, digest, len(data), dict(annotations or {}), artifact_type)


def empty_descriptor() -> Descriptor:
    """The descriptor of the two bytes ``{}``: the config of manifests that have none."""
    return Descriptor.of_bytes(MEDIA_TYPE_EMPTY, EMPTY_BLOB)


@dataclass(frozen=True)
class Manifest:
    """An OCI 1.1 image manifest."""

    config: Descriptor
    layers: tuple[Descriptor, ...]
    artifact_type: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    subject: Descriptor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        _annotations(self.annotations, "annotations")
        if self.artifact_type is not None:
            _media_type(self.artifact_type, "artifactType")

    def to_bytes(self) -> bytes:
        """The manifest as canonical JSON: the same manifest always has the same digest."""
        value: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": MEDIA_TYPE_MANIFEST,
            "config": self.config.to_dict(),
            "layers": [layer.to_dict() for layer in self.layers],
        }
        if self.artifact_type is not None:
            value["artifactType"] = self.artifact_type
        if self.subject is not None:
            value["subject"] = self.subject.to_dict()
        if self.annotations:
            value["annotations"] = dict(self.annotations)
        return canonical_json(value)

    def descriptor(self, annotations: Mapping[str, str] | None = None) -> Descriptor:
        """Describe `to_bytes()`, for an index or as a subject."""
        return Descriptor.of_bytes(
            MEDIA_TYPE_MANIFEST, self.to_bytes(), annotations, self.artifact_type
        )

    @classmethod
    def parse(cls, raw: bytes) -> "Manifest":
        """Read untrusted manifest bytes (whose digest the caller has checked)."""
        table = _document(raw, "manifest", MEDIA_TYPE_MANIFEST)
        layers = table.get("layers")
        if not isinstance(layers, list):
            raise _malformed("manifest: layers", "an array", layers)
        subject = table.get("subject")
        return cls(
            config=Descriptor.from_dict(table.get("config")),
            layers=tuple(Descriptor.from_dict(layer) for layer in layers),
            artifact_type=table.get("artifactType") or None,
            annotations=dict(_annotations(table.get("annotations", {}), "annotations")),
            subject=None if subject is None else Descriptor.from_dict(subject),
        )


@dataclass(frozen=True)
class Index:
    """An OCI 1.1 image index: a layout's ``index.json`` or a list of referrers."""

    manifests: tuple[Descriptor, ...]
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "manifests", tuple(self.manifests))
        _annotations(self.annotations, "annotations")

    def to_bytes(self) -> bytes:
        """The index as canonical JSON."""
        value: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": MEDIA_TYPE_INDEX,
            "manifests": [descriptor.to_dict() for descriptor in self.manifests],
        }
        if self.annotations:
            value["annotations"] = dict(self.annotations)
        return canonical_json(value)

    def tagged(self, tag: str) -> Descriptor | None:
        """The descriptor that a layout calls `tag`, if any."""
        for descriptor in self.manifests:
            if descriptor.annotations.get(ANNOTATION_REF_NAME) == tag:
                return descriptor
        return None

    @classmethod
    def parse(cls, raw: bytes) -> "Index":
        """Read untrusted index bytes."""
        table = _document(raw, "index", MEDIA_TYPE_INDEX)
        manifests = table.get("manifests")
        if not isinstance(manifests, list):
            raise _malformed("index: manifests", "an array", manifests)
        return cls(
            manifests=tuple(Descriptor.from_dict(item) for item in manifests),
            annotations=dict(_annotations(table.get("annotations", {}), "annotations")),
        )


def parse_json(raw: bytes, what: str) -> Any:
    """Read untrusted JSON; duplicate keys, NaN and bytes that are not UTF-8 are refused."""
    if len(raw) > MAX_MANIFEST_BYTES:
        raise _malformed(what, f"at most {MAX_MANIFEST_BYTES} bytes", f"{len(raw)} bytes")
    try:
        return json.loads(
            raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        start = raw[:60].decode("utf-8", "replace")
        raise VerificationError(
            f"{what} is not valid JSON: {error}", expected="a JSON object", found=repr(start)
        ) from None


def _document(raw: bytes, what: str, media_type: str) -> Mapping[str, Any]:
    table = _object(parse_json(raw, what), what)
    if table.get("schemaVersion") != 2:
        raise _malformed(f"{what}: schemaVersion", "2", table.get("schemaVersion"))
    if table.get("mediaType", media_type) != media_type:
        raise _malformed(f"{what}: mediaType", media_type, table.get("mediaType"))
    return table


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object has the same key twice")
    return result


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _malformed(where: str, expected: str, found: object) -> VerificationError:
    return VerificationError(f"{where} is malformed", expected=expected, found=repr(found)[:200])


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _malformed(where, "a JSON object", value)
    return value


def _media_type(value: object, where: str) -> str:
    if not isinstance(value, str) or _MEDIA_TYPE.fullmatch(value) is None:
        raise _malformed(where, "a media type such as application/json", value)
    return value


def _digest(value: object, where: str) -> str:
    if not is_digest(value):
        raise _malformed(where, "sha256: and 64 lower-case hex digits", value)
    return str(value)


def _size(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_SAFE_INTEGER:
        raise _malformed(where, "a count of bytes", value)
    return value


def _annotations(value: object, where: str) -> Mapping[str, str]:
    if not isinstance(value, Mapping) or not all(
        isinstance(key, str) and isinstance(item, str) for key, item in value.items()
    ):
        raise _malformed(where, "an object of strings", value)
    return value
