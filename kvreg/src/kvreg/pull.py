"""Pulling a runtime: find, fetch, verify, stage, and make it appear with one rename."""

import ctypes
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from kvreg import __version__
from kvreg.artifact import Artifact, WheelLayer, find_artifact, wheel_layers
from kvreg.blobs import BlobStore
from kvreg.errors import KvregError, VerificationError
from kvreg.home import Home
from kvreg.integrity import check_runtime
from kvreg.model.digest import parse_digest
from kvreg.model.oci import ANNOTATION_UNPACKED_SIZE
from kvreg.model.profile import Profile, profile_from_canonical
from kvreg.overlay import OverlayEntry, check_wheels, lock_descriptor
from kvreg.publickey import PublicKey
from kvreg.runtime import OVERLAY, OVERLAY_LOCK, SITE, Runtime, WheelEntry, read_runtime
from kvreg.settings import is_trusted
from kvreg.signatures import Signature, require_signature
from kvreg.sources import Source
from kvreg.wheel.archive import WheelArchive
from kvreg.wheel.scripts import interpreter_for
from kvreg.wheel.staging import Staged, WheelPlan, check_together, plan_wheel, stage

_UNPACKED_LIMIT = 1 << 40
# File system overhead of many small files, per file.
_BLOCK = 4096


@dataclass(frozen=True)
class Reporter:
    """How a pull tells what it does; the defaults tell nothing.

    `bar` makes a context manager with ``update(count)`` from a total in bytes and a description.
    """

    note: Callable[[str], object] = lambda text: None
    bar: Callable[[int, str], Any] | None = None

    @contextmanager
    def progress(self, total: int, description: str) -> Iterator[Callable[[int], object]]:
        """A function that takes counts of bytes, for as long as the context lasts."""
        if self.bar is None:
            yield lambda count: None
        else:
            with self.bar(total, description) as bar:
                yield bar.update


@dataclass(frozen=True)
class Pulled:
    """A runtime that is staged now; `staged` is False when it already was, and verified."""

    runtime: Runtime
    staged: bool

    def to_dict(self) -> dict[str, Any]:
        """The content of ``runtime.json``, the folder, and whether this pull staged it."""
        return {
            **self.runtime.to_dict(),
            "folder": str(self.runtime.folder),
            "staged": self.staged,
        }


def pull(
    profile_digest: str,
    open_source: Callable[[], Source],
    target: str | None,
    home: Home,
    reporter: Reporter | None = None,
    profile_name: str | None = None,
    *,
    keys: tuple[PublicKey, ...] = (),
) -> Pulled:
    """Make the runtime of a profile digest available in `home`.

    A runtime that is there already and intact is returned without opening the source, unless
    `target` (the tag or digest that the caller's reference names) asks for a certain artifact.
    `profile_name` is for messages alone. With `keys`, one of them must have signed the artifact:
    this is checked before anything of it is fetched, and one that is staged already counts only
    when it was checked so.
    Only one process at a time works on a profile; another one waits and then finds it done.
    Raises a `KvregError` of the kind that fits; nothing half-made is left behind.
    """
    reporter = reporter or Reporter()
    name = f"runtime-{parse_digest(profile_digest)}"
    with home.lock(name, lambda: reporter.note("another pull of this profile runs; waiting")):
        existing = _existing(home, profile_digest, reporter)
        trusted = existing is not None and (not keys or is_trusted(existing, keys))
        if existing is not None and trusted and target in (None, existing.manifest_digest):
            return Pulled(existing, staged=False)
        source = open_source()
        artifact = find_artifact(source, profile_digest, profile_name)
        signature = None
        if keys:
            location = str(source.reference.with_target())
            signature = require_signature(source, artifact.digest, keys, location)
        if existing is not None and existing.manifest_digest == artifact.digest:
            return Pulled(existing.signed(signature) if signature else existing, staged=False)
        return Pulled(_make(source, artifact, signature, home, reporter), staged=True)


def _existing(home: Home, profile_digest: str, reporter: Reporter) -> Runtime | None:
    """The runtime that is staged already, if it is intact as far as a quick look can tell."""
    folder = home.runtime(profile_digest)
    if not folder.exists():
        return None
    try:
        report = check_runtime(read_runtime(folder), quick=True)
    except KvregError as error:
        reporter.note(f"{error.what}; staging it again")
        return None
    if report.missing or report.changed:
        count = len(report.missing) + len(report.changed)
        reporter.note(f"the staged runtime has {count} missing or changed files; staging it again")
        return None
    return report.runtime


def _make(
    source: Source,
    artifact: Artifact,
    signature: Signature | None,
    home: Home,
    reporter: Reporter,
) -> Runtime:
    blobs = BlobStore(home)
    config = blobs.fetch(source, artifact.manifest.config, lambda count: None)
    profile = profile_from_canonical(config.read_bytes())
    if profile.digest != artifact.manifest.config.digest:
        raise VerificationError("the profile of the artifact changed while it was read")
    layers = wheel_layers(artifact, profile)
    lock = _overlay_lock(source, artifact, profile, layers, blobs)
    needed = sum(blobs.missing_bytes(source, layer.descriptor) for layer in layers)
    home.require_space(needed + _claimed_unpacked(layers), "for the artifact")
    with ExitStack() as stack:
        plans = []
        for layer in layers:
            with reporter.progress(layer.descriptor.size, f"fetch {layer.name.filename}") as update:
                path = blobs.fetch(source, layer.descriptor, update)
            archive = stack.enter_context(WheelArchive(path, layer.name))
            plans.append(plan_wheel(archive, requested=layer.role != "overlay"))
        check_together(plans)
        unpacked = sum(plan.archive.unpacked_size for plan in plans)
        count = sum(len(plan.placements) for plan in plans)
        home.require_space(unpacked + count * _BLOCK, "to unpack the runtime")
        folder = home.staging(profile.digest)
        _remove(folder)
        try:
            if lock is not None:
                folder.mkdir(parents=True)
                (folder / OVERLAY_LOCK).write_bytes(lock)
            return _stage(artifact, signature, profile, layers, plans, home, reporter)
        finally:
            # Gone already when it was renamed; after a failure nothing is left.
            _remove(folder)


def _overlay_lock(
    source: Source,
    artifact: Artifact,
    profile: Profile,
    layers: Sequence[WheelLayer],
    blobs: BlobStore,
) -> bytes | None:
    """The overlay lock of the profile; before any wheel is fetched they are compared with it."""
    descriptor = lock_descriptor(artifact.manifest, profile)
    lock = descriptor and blobs.fetch(source, descriptor, lambda count: None).read_bytes()
    wheels = [
        OverlayEntry(layer.name.name, layer.name.version, parse_digest(layer.descriptor.digest))
        for layer in layers
        if layer.role == "overlay"
    ]
    check_wheels(lock, wheels, profile)
    return lock


def _stage(
    artifact: Artifact,
    signature: Signature | None,
    profile: Profile,
    layers: Sequence[WheelLayer],
    plans: Sequence[WheelPlan],
    home: Home,
    reporter: Reporter,
) -> Runtime:
    folder = home.staging(profile.digest)
    interpreter = interpreter_for(profile.host.python_tag.validated)
    staged: list[Staged] = []
    for layer, plan in zip(layers, plans, strict=True):
        place = folder / (OVERLAY if layer.role == "overlay" else SITE)
        place.mkdir(parents=True, exist_ok=True)
        size = plan.archive.unpacked_size
        with reporter.progress(size, f"stage {plan.archive.name.filename}") as update:
            staged.append(stage(plan, place, interpreter, update))
    sizes = [size for item in staged for size in item.sizes.values()]
    runtime = Runtime(
        folder=folder,
        profile_name=profile.name,
        profile_digest=profile.digest,
        manifest_digest=artifact.digest,
        reference=str(artifact.reference),
        wheels=tuple(map(_entry, layers, staged)),
        files=len(sizes),
        bytes=sum(sizes),
        annotations=dict(artifact.manifest.annotations),
        kvreg_version=__version__,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        signature=signature,
    )
    runtime.write(profile)
    _sync(folder)
    return read_runtime(_appear(folder, home.runtime(profile.digest)))


def _entry(layer: WheelLayer, staged: Staged) -> WheelEntry:
    return WheelEntry(
        filename=layer.name.filename,
        name=layer.name.name,
        version=layer.name.version,
        role=layer.role,
        sha256=parse_digest(layer.descriptor.digest),
        record=staged.record,
        record_sha256=staged.record_sha256,
    )


def _appear(folder: Path, final: Path) -> Path:
    """Rename a finished runtime to its final name, a damaged one of that name out of the way."""
    old = final.with_name(f".old-{final.name}")
    _remove(old)
    if final.exists():
        final.rename(old)
    folder.rename(final)
    _fsync_directory(final.parent)
    _remove(old)
    return final


def _claimed_unpacked(layers: Sequence[WheelLayer]) -> int:
    """What the publisher says that the wheels unpack to: a hint, checked exactly later."""
    claims = [layer.descriptor.annotations.get(ANNOTATION_UNPACKED_SIZE, "") for layer in layers]
    numbers = [int(text) for text in claims if text.isascii() and text.isdigit() and len(text) < 14]
    return min(sum(numbers), _UNPACKED_LIMIT)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _sync(folder: Path) -> None:
    """Bring everything below `folder` to the disk before its name says that it is complete."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        # One call for the file system instead of one for each of thousands of files.
        syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if syncfs is None or syncfs(handle) != 0:
            os.sync()
    finally:
        os.close(handle)


def _fsync_directory(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
