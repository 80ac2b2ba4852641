"""Making a runtime: everything is received, checked and unpacked at once, then it appears.

The ends of the wheels come first. From them it is known, before anything else is written, whether
the wheels are refused and how much room they need; then members are unpacked as their bytes arrive
while the digests of the wheels are computed. The runtime gets its name when the digests, and the
hash of every file, have turned out to be right.
"""

import errno
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from kvreg import __version__
from kvreg.artifact import Artifact, WheelLayer, wheel_layers
from kvreg.blobs import BlobStore, StaleBytesError, Transfer
from kvreg.durability import appear, remove
from kvreg.errors import ContractError, KvregError, StorageError, VerificationError
from kvreg.files import write_atomically
from kvreg.home import Home
from kvreg.integrity import expected_rows
from kvreg.model.digest import parse_digest, sha256_bytes
from kvreg.model.oci import ANNOTATION_UNPACKED_SIZE, Descriptor
from kvreg.model.profile import Profile, profile_from_canonical
from kvreg.overlay import OverlayEntry, check_wheels, lock_descriptor
from kvreg.pull import Reporter, Work
from kvreg.runtime import (
    OVERLAY,
    OVERLAY_LOCK,
    SITE,
    Runtime,
    WheelEntry,
    read_runtime,
    readable_runtimes,
)
from kvreg.sources import Source
from kvreg.transfer.blob import Cancelled
from kvreg.wheel.archive import WheelArchive
from kvreg.wheel.plan import WheelPlan, check_together, plan_wheel
from kvreg.wheel.reuse import EarlierFiles
from kvreg.wheel.scripts import interpreter_for
from kvreg.wheel.staging import Staged, Unpacked, stage_all
from kvreg.wheel.tags import check_interpreter

if TYPE_CHECKING:
    from kvreg.signatures import Signature

_LONGEST_SIZE = 14
_FULL = (errno.ENOSPC, errno.EDQUOT)
# File system overhead of many small files, per file.
_BLOCK = 4096


def make(
    source: Source,
    artifact: Artifact,
    signature: "Signature | None",
    home: Home,
    reporter: Reporter,
    *,
    any_host: bool = False,
) -> tuple[Runtime, Work]:
    """Make the runtime of an artifact appear in `home`, in the place of one that is there.

    A wheel that this interpreter cannot load is refused, but for `any_host`. The caller holds the
    profile's lock. Raises a `KvregError` of the kind that fits; what was received is kept for the
    next time, and nothing else.
    """
    # A profile is small and not kept: nothing is written before there is known to be room.
    profile = profile_from_canonical(source.read_small(artifact.manifest.config))
    layers = wheel_layers(artifact, profile)
    if not any_host:
        for layer in layers:
            check_interpreter(layer.name)
    lock = _overlay_lock(source, artifact, profile, layers)
    making = _Making(artifact, signature, profile, layers, lock, home, reporter)
    try:
        try:
            return making.run(source)
        except StaleBytesError as error:
            reporter.note(f"{error.what}, of what was kept from earlier; fetching it again")
            return making.run(source)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise StorageError(
            f"the disk of {home.root} is full",
            found=error.strerror,
            remedy="free some space, or choose a home on another file system with --home,"
            " and try again: what was received is kept",
        ) from error


def _overlay_lock(
    source: Source, artifact: Artifact, profile: Profile, layers: Sequence[WheelLayer]
) -> bytes | None:
    """The overlay lock of the profile; before any wheel is fetched they are compared with it."""
    descriptor = lock_descriptor(artifact.manifest, profile)
    lock = source.read_small(descriptor) if descriptor is not None else None
    wheels = [
        OverlayEntry(layer.name.name, layer.name.version, parse_digest(layer.descriptor.digest))
        for layer in layers
        if layer.role == "overlay"
    ]
    check_wheels(lock, wheels, profile)
    return lock


@dataclass(frozen=True)
class _Making:
    """One runtime that is being made."""

    artifact: Artifact
    signature: "Signature | None"
    profile: Profile
    layers: tuple[WheelLayer, ...]
    overlay_lock: bytes | None
    home: Home
    reporter: Reporter

    def run(self, source: Source) -> tuple[Runtime, Work]:
        """Receive, unpack and verify at once; then let the runtime appear."""
        blobs = BlobStore(self.home)
        descriptors = [layer.descriptor for layer in self.layers]
        missing = sum(blobs.missing_bytes(source, descriptor) for descriptor in descriptors)
        claims = [_claimed_unpacked(layer) for layer in self.layers]
        self.home.require_space(missing + sum(claim or 0 for claim in claims), "for the artifact")
        folder = self.home.staging(self.profile.digest)
        remove(folder)
        with ExitStack() as stack:
            # Gone already when it was renamed; after a failure nothing is left.
            stack.callback(remove, folder)
            fetched = stack.enter_context(self._progress(source, descriptors))
            transfer = stack.enter_context(blobs.transfer(source, descriptors, fetched))
            # It waits for the disk: while the first bytes come.
            self._keep_small(source)
            try:
                plans = self._plan(transfer, claims, stack)
                unpacked = self._unpack(plans)
            except (VerificationError, ContractError):
                # Where a blob is not what it should be, that is the cause, and what is said.
                with suppress(Cancelled):
                    transfer.finish()
                raise
            transfer.finish()
            work = Work(
                transfer.received,
                unpacked.reused,
                unpacked.inflate.name,
                unpacked.inflate.version,
                unpacked.workers,
            )
            if self.overlay_lock is not None:
                (folder / OVERLAY_LOCK).write_bytes(self.overlay_lock)
            self._runtime(unpacked.staged).write(self.profile)
            final = appear(folder, self.home.runtime(self.profile.digest))
        return read_runtime(final), work

    def _keep_small(self, source: Source) -> None:
        """Keep the profile and the overlay lock among the blobs, unless the source is here too."""
        small = [self.profile.canonical()]
        if self.overlay_lock is not None:
            small.append(self.overlay_lock)
        if source.local_path(self.artifact.manifest.config) is None:
            for raw in small:
                path = self.home.blob(sha256_bytes(raw))
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, raw)

    def _progress(
        self, source: Source, descriptors: Sequence[Descriptor]
    ) -> AbstractContextManager[Callable[[int], object]]:
        if all(source.local_path(descriptor) is not None for descriptor in descriptors):
            return nullcontext(lambda count: None)
        size = sum(descriptor.size for descriptor in descriptors)
        return self.reporter.progress(size, f"fetch {self.profile.name}")

    def _plan(
        self, transfer: Transfer, claims: Sequence[int | None], stack: ExitStack
    ) -> list[WheelPlan]:
        """Decide everything that will be written, from the ends of the wheels."""
        plans = []
        for blob, layer, claim in zip(transfer.blobs, self.layers, claims, strict=True):
            archive = stack.enter_context(WheelArchive(blob, layer.name, declared=claim))
            plans.append(plan_wheel(archive, requested=layer.role != "overlay"))
        check_together(plans)
        size = sum(plan.archive.unpacked_size for plan in plans)
        count = sum(len(plan.placements) for plan in plans)
        self.home.require_space(size + count * _BLOCK, "to unpack the runtime")
        return plans

    def _unpack(self, plans: Sequence[WheelPlan]) -> Unpacked:
        folder = self.home.staging(self.profile.digest)
        places = [folder / (OVERLAY if x.role == "overlay" else SITE) for x in self.layers]
        for place in places:
            place.mkdir(parents=True, exist_ok=True)
        size = sum(plan.archive.unpacked_size for plan in plans)
        with self.reporter.progress(size, f"stage {self.profile.name}") as update:
            return stage_all(
                list(zip(plans, places, strict=True)),
                interpreter_for(self.profile.host.python_tag.validated),
                progress=update,
                earlier=_earlier(self.home),
            )

    def _runtime(self, staged: Sequence[Staged]) -> Runtime:
        sizes = [size for item in staged for size in item.sizes.values()]
        return Runtime(
            folder=self.home.staging(self.profile.digest),
            profile_name=self.profile.name,
            profile_digest=self.profile.digest,
            manifest_digest=self.artifact.digest,
            reference=str(self.artifact.reference),
            wheels=tuple(map(_entry, self.layers, staged)),
            files=len(sizes),
            bytes=sum(sizes),
            annotations=dict(self.artifact.manifest.annotations),
            kvreg_version=__version__,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            signature=self.signature,
        )


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


def _earlier(home: Home) -> EarlierFiles:
    """The files of all runtimes in the home, damaged ones' too: each is hashed before its use."""
    found = []
    for runtime in readable_runtimes(home):
        # One whose records were changed says nothing that could be relied on.
        with suppress(KvregError, OSError):
            found.append((runtime.site, expected_rows(runtime)))
    return EarlierFiles.of(found)


def _claimed_unpacked(layer: WheelLayer) -> int | None:
    """What the publisher says that a wheel unpacks to at most, if anything."""
    text = layer.descriptor.annotations.get(ANNOTATION_UNPACKED_SIZE, "")
    is_count = text.isascii() and text.isdigit() and len(text) < _LONGEST_SIZE
    return int(text) if is_count else None
