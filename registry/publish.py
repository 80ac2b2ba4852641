"""Publishing a runtime: the OCI artifact of one profile, the same bytes in every store.

The config blob is the profile's canonical JSON, so the digest of the manifest's config is the
profile digest. Nothing that depends on the moment or the place enters the manifest.
"""

import datetime
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvreg.errors import NotFoundError, UsageError
from kvreg.model.oci import (
    ANNOTATION_CREATED,
    ANNOTATION_ROLE,
    ANNOTATION_TITLE,
    ANNOTATION_TOOLCHAIN_PREFIX,
    ANNOTATION_UNPACKED_SIZE,
    MEDIA_TYPE_MANIFEST,
    MEDIA_TYPE_PROFILE,
    MEDIA_TYPE_RUNTIME,
    MEDIA_TYPE_WHEEL,
    WHEEL_ROLES,
    Descriptor,
    Manifest,
)
from kvreg.model.profile import Profile
from registry.parallel import in_parallel
from registry.store import Store, refuse_move
from registry.stream import BlobSource, HashedFile, Progress, hash_file
from registry.text import is_plain_name

ANNOTATION_VERSION = "org.opencontainers.image.version"
ANNOTATION_REVISION = "org.opencontainers.image.revision"
ANNOTATION_PROFILE = "vnd.kvreg.profile"


@dataclass(frozen=True)
class Layer:
    """A file to publish. Its name becomes the title; a wheel needs a role."""

    path: Path
    media_type: str = MEDIA_TYPE_WHEEL
    role: str | None = None


@dataclass(frozen=True)
class ToolchainUse:
    """The toolchain that really made the wheel: its name, image digest and CUDA version."""

    name: str
    image_digest: str
    cuda_version: str

    def annotations(self) -> dict[str, str]:
        """As annotations of the manifest."""
        prefix = ANNOTATION_TOOLCHAIN_PREFIX
        return {
            f"{prefix}.name": self.name,
            f"{prefix}.image": self.image_digest,
            f"{prefix}.cuda": self.cuda_version,
        }


@dataclass(frozen=True)
class Published:
    """What is now in the store: the manifest, its tags, and how many bytes had to be sent."""

    descriptor: Descriptor
    tags: tuple[str, ...]
    uploaded_bytes: int = 0

    def to_dict(self) -> dict[str, object]:
        """As JSON-ready data."""
        return {
            **self.descriptor.to_dict(),
            "tags": list(self.tags),
            "uploadedBytes": self.uploaded_bytes,
        }


def publish(
    store: Store,
    profile: Profile,
    layers: Sequence[Layer],
    annotations: Mapping[str, str] | None = None,
    date: datetime.date | None = None,
    *,
    toolchain: ToolchainUse | None = None,
    dated: bool = True,
    progress: Progress | None = None,
) -> Published:
    """Put the artifact of `profile` into `store` and tag it.

    `date` (default: today, UTC) goes into the tag that is never moved, which is left out without
    `dated`; the manifest itself is dated by the profile's ``source_date_epoch``, so that the same
    inputs give the same digest whenever they are published.

    `UsageError` for layers that cannot be meant, `ContractError` when the tag of that date names
    other bytes already: both before anything is sent.
    """
    day = date or datetime.datetime.now(datetime.UTC).date()
    tags = profile.tags(profile.runtime.version, day)
    _check_names(layers)
    notes = [_annotations(layer) for layer in layers]

    def manifest_of(files: Iterable[HashedFile]) -> Manifest:
        described = [
            file.descriptor(layer.media_type, note)
            for layer, note, file in zip(layers, notes, files, strict=True)
        ]
        return runtime_manifest(profile, described, annotations, toolchain=toolchain)

    store.prepare()
    sources: Sequence[BlobSource] = [layer.path for layer in layers]
    if dated and (current := store.resolve(tags.fixed)) is not None:
        # Only then are the files hashed before they are sent, and not meanwhile.
        files = in_parallel(lambda layer, _: hash_file(layer.path), layers)
        refuse_move(store.location, tags.fixed, current, manifest_of(files).descriptor())
        sources = files
    pushed = in_parallel(_push, [profile.canonical(), *sources], store, progress=progress)
    manifest = manifest_of(file for file, _ in pushed if file is not None)
    found = manifest.descriptor()
    store.push_manifest(manifest.to_bytes(), MEDIA_TYPE_MANIFEST)
    # The moving name last: whoever sees it finds the others.
    if dated:
        store.tag(found, tags.fixed, move=False)
    store.tag(found, tags.by_digest)
    store.tag(found, tags.moving)
    named = tags if dated else (tags.moving, tags.by_digest)
    return Published(found, tuple(named), sum(sent for _, sent in pushed))


def runtime_manifest(
    profile: Profile,
    layers: Sequence[Descriptor],
    annotations: Mapping[str, str] | None = None,
    *,
    toolchain: ToolchainUse | None = None,
) -> Manifest:
    """The manifest of a runtime artifact, a function of its arguments alone."""
    created = datetime.datetime.fromtimestamp(profile.build.source_date_epoch, datetime.UTC)
    found = {
        ANNOTATION_CREATED: created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        ANNOTATION_VERSION: profile.runtime.version,
        ANNOTATION_PROFILE: profile.name,
        **({ANNOTATION_REVISION: c} if (c := profile.runtime.upstream_commit) else {}),
        **(toolchain.annotations() if toolchain else {}),
        **(annotations or {}),
    }
    return Manifest(
        config=Descriptor.of_bytes(MEDIA_TYPE_PROFILE, profile.canonical()),
        layers=tuple(layers),
        artifact_type=MEDIA_TYPE_RUNTIME,
        annotations=found,
    )


def _push(
    source: BlobSource, progress: Progress | None, store: Store
) -> tuple[HashedFile | None, int]:
    """What was hashed, and how many bytes had to be sent."""
    if isinstance(source, Path):
        file, sent = store.push_file(source, progress)
        return file, file.size if sent else 0
    if isinstance(source, HashedFile):
        file, blob = source, source.descriptor()
    else:
        file, blob = None, Descriptor.of_bytes(MEDIA_TYPE_PROFILE, source)
    return file, blob.size if store.push_blob(source, blob, progress) else 0


def _annotations(layer: Layer) -> dict[str, str]:
    if layer.media_type == MEDIA_TYPE_WHEEL and layer.role not in WHEEL_ROLES:
        raise UsageError(
            f"{layer.path.name} needs a role", expected=", ".join(WHEEL_ROLES), found=layer.role
        )
    if not layer.path.is_file():
        raise NotFoundError(f"there is no file {layer.path}")
    annotations = {ANNOTATION_TITLE: layer.path.name}
    if layer.role is not None:
        annotations[ANNOTATION_ROLE] = layer.role
    if zipfile.is_zipfile(layer.path):
        # Lets a client see before it downloads whether its disk has room for what it unpacks.
        with zipfile.ZipFile(layer.path) as wheel:
            unpacked = sum(member.file_size for member in wheel.infolist())
        annotations[ANNOTATION_UNPACKED_SIZE] = str(unpacked)
    return annotations


def _check_names(layers: Sequence[Layer]) -> None:
    titles = [layer.path.name for layer in layers]
    if not titles:
        raise UsageError("an artifact needs at least one layer")
    if wrong := [title for title in titles if not is_plain_name(title)]:
        raise UsageError("a layer's file name cannot be a title", found=repr(wrong[0]))
    if len(set(titles)) != len(titles):
        raise UsageError("two layers have the same file name", found=", ".join(sorted(titles)))
