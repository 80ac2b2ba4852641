"""Artifacts with an overlay, for tests: a profile that locks it, wheels, and a layout with both."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from kvreg.home import Home
from kvreg.model.digest import sha256_bytes
from kvreg.model.oci import ANNOTATION_TITLE, MEDIA_TYPE_OVERLAY_LOCK, Descriptor
from kvreg.model.profile import Profile, load_profile
from kvreg.wheel.tags import parse_wheel_name
from tests.kvreg.conftest import Published
from tests.kvreg.profiles import write_profile
from tests.support.layouts import add_blob, runtime_manifest, write_layout


def lock_of(wheels: Sequence[Path]) -> bytes:
    """The overlay lock of some wheels."""
    lines = ["# Overlay for tests."]
    for path in wheels:
        name = parse_wheel_name(path.name)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        lines += [
            f"# wheel: {path.name} ({path.stat().st_size} bytes)",
            f"{name.name}=={name.version} --hash=sha256:{digest}",
        ]
    return ("\n".join(lines) + "\n").encode()


def overlay_profile(parent: Path, lock: bytes, runtime: str = "", **replacements: str) -> Profile:
    """A valid profile with an overlay lock; `runtime` is TOML that follows its table [runtime]."""
    folder = write_profile(
        parent,
        source='source = "source.lock"\noverlay = "overlay.lock"',
        modules=f'modules = ["demo_pkg"]\n{runtime}',
        **replacements,
    )
    (folder / "overlay.lock").write_bytes(lock)
    return load_profile(folder)


def publish_overlay(
    folder: Path,
    native: Path,
    overlay: Sequence[Path],
    *,
    runtime: str = "",
    lock: bytes | None = None,
    published_lock: bytes | None = None,
) -> Published:
    """Write profile, layout and home below `folder`; `lock` and `published_lock` can be wrong."""
    lock = lock_of(overlay) if lock is None else lock
    published_lock = lock if published_lock is None else published_lock
    profile = overlay_profile(folder / "catalogue", lock, runtime)
    wheels = [(native, "native"), *((path, "overlay") for path in overlay)]
    manifest = runtime_manifest(profile, wheels)
    descriptor = Descriptor(
        MEDIA_TYPE_OVERLAY_LOCK,
        sha256_bytes(published_lock),
        len(published_lock),
        {ANNOTATION_TITLE: "overlay.lock"},
    )
    manifest = type(manifest)(
        manifest.config,
        (*manifest.layers, descriptor),
        manifest.artifact_type,
        manifest.annotations,
    )
    layout = folder / "layout"
    add_blob(layout, published_lock)
    write_layout(layout, profile, wheels, manifest=manifest)
    return Published(profile, native, manifest, layout, Home(folder / "home"))
