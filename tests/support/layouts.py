"""Artifacts in OCI layouts for tests, written with nothing but the shared model."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvreg.model.digest import sha256_bytes
from kvreg.model.layout import packed_name
from kvreg.model.oci import (
    ANNOTATION_REF_NAME,
    ANNOTATION_ROLE,
    ANNOTATION_TITLE,
    MEDIA_TYPE_PROFILE,
    MEDIA_TYPE_RUNTIME,
    MEDIA_TYPE_WHEEL,
    Descriptor,
    Index,
    Manifest,
)
from kvreg.model.profile import Profile

ANNOTATIONS = {"vnd.kvreg.toolchain.name": "cuda-12.4-debian12"}


def blob_path(layout: Path, digest: str) -> Path:
    """Where a layout keeps a blob."""
    return layout / "blobs" / "sha256" / digest.removeprefix("sha256:")


def add_blob(layout: Path, data: bytes) -> str:
    """Put a blob into a layout; its digest."""
    digest = sha256_bytes(data)
    path = blob_path(layout, digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return digest


def runtime_manifest(
    profile: Profile,
    wheels: Sequence[tuple[Path, str]],
    annotations: Mapping[str, str] = ANNOTATIONS,
) -> Manifest:
    """The manifest of wheels with their roles."""
    layers = [
        Descriptor.of_bytes(
            MEDIA_TYPE_WHEEL,
            path.read_bytes(),
            {ANNOTATION_TITLE: path.name, ANNOTATION_ROLE: role},
        )
        for path, role in wheels
    ]
    config = Descriptor.of_bytes(MEDIA_TYPE_PROFILE, profile.canonical())
    return Manifest(config, tuple(layers), MEDIA_TYPE_RUNTIME, annotations)


def write_layout(
    layout: Path,
    profile: Profile,
    wheels: Sequence[tuple[Path, str]],
    *,
    tag: str | None = None,
    manifest: Manifest | None = None,
) -> Manifest:
    """Write (or add to) a layout with one artifact, tagged with the profile's digest tag."""
    manifest = manifest or runtime_manifest(profile, wheels)
    for path, _ in wheels:
        add_blob(layout, path.read_bytes())
    add_blob(layout, profile.canonical())
    raw = manifest.to_bytes()
    add_blob(layout, raw)
    (layout / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    old = layout / "index.json"
    entries = list(Index.parse(old.read_bytes()).manifests) if old.exists() else []
    name = profile.digest_tag if tag is None else tag
    entries.append(manifest.descriptor({ANNOTATION_REF_NAME: name} if name else {}))
    old.write_bytes(Index(tuple(entries)).to_bytes())
    assert Manifest.parse(raw) == manifest
    return manifest


def packed_layout(layout: Path, folder: Path) -> Path:
    """The same layout as ``registry pack`` arranges it: every blob beside the index."""
    folder.mkdir(parents=True)
    for name in ("oci-layout", "index.json"):
        (folder / name).write_bytes((layout / name).read_bytes())
    for blob in (layout / "blobs/sha256").iterdir():
        (folder / packed_name(f"sha256:{blob.name}")).write_bytes(blob.read_bytes())
    return folder
