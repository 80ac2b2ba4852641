"""Verified blobs: read in place where they lie on this machine, else received into the home.

A transfer hands out its blobs while they still arrive, so that they can be read and unpacked
meanwhile; what they hold counts for nothing before `Transfer.finish` has returned.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvreg.errors import VerificationError
from kvreg.home import Home
from kvreg.model.digest import parse_digest
from kvreg.model.oci import Descriptor
from kvreg.sources import Source
from kvreg.transfer.blob import Arrivals, Blob, Progress
from kvreg.transfer.checking import Checking
from kvreg.transfer.download import Download, blob_name, wrong_size
from kvreg.transfer.journal import Journal, discard, journal_path, recover
from kvreg.transfer.ranges import RangeSet
from kvreg.transfer.schedule import DEFAULT_RANGES, RangePolicy


class StaleBytesError(VerificationError):
    """Bytes kept from earlier were wrong. They are gone: trying again fetches everything."""


class Transfer:
    """Blobs that are on their way."""

    def __init__(
        self, blobs: Sequence[Blob], arrivals: Arrivals, download: Download | None
    ) -> None:
        self.blobs = tuple(blobs)
        self._download = download
        self._checking = Checking(blobs, arrivals)
        self._arrivals = arrivals

    @property
    def received(self) -> int:
        """Bytes that came over the network."""
        return sum(blob.received for blob in self.blobs)

    def start(self) -> None:
        """Let the threads begin."""
        self._checking.start()
        if self._download is not None:
            self._download.start()

    def finish(self) -> tuple[Path, ...]:
        """Wait until everything is there and right; the file of each blob, under its final name.

        `VerificationError` when bytes are not the blob's (nothing of it is kept), `NetworkError`
        when the transfer broke off (what arrived is kept).
        """
        if self._download is not None:
            # A server that sends more than the blob is told only now.
            self._download.join()
            self._arrivals.check()
        for blob in self.blobs:
            self._check(blob, self._checking.digest(blob))
            if blob.partial and blob.path.exists():
                blob.path.replace(blob.final)
                journal_path(blob.path).unlink(missing_ok=True)
        return tuple(blob.final for blob in self.blobs)

    def _check(self, blob: Blob, found: str) -> None:
        if found == blob.descriptor.digest:
            return
        kept = blob.resumed and (blob.partial or blob.kept)
        if blob.partial:
            discard(blob.path)
        elif blob.kept:
            blob.path.unlink()
        raise _wrong_digest(blob, found, StaleBytesError if kept else VerificationError)


@dataclass(frozen=True)
class BlobStore:
    """The blobs of a home. `stalls` is how often in a row a connection may bring nothing new."""

    home: Home
    stalls: int = 5
    sleep: Callable[[float], None] = time.sleep
    ranges: RangePolicy = DEFAULT_RANGES

    def fetch(self, source: Source, descriptor: Descriptor, progress: Progress) -> Path:
        """The path of a file that holds exactly the blob; `progress` gets counts of bytes.

        A source on this machine is read in place. Raises `VerificationError` when the bytes are
        not the blob's (nothing is kept) and `NetworkError` when the transfer breaks off (what
        arrived is kept, and the next fetch goes on from there).
        """
        try:
            return self._fetch(source, descriptor, progress)
        except StaleBytesError:
            return self._fetch(source, descriptor, progress)

    def _fetch(self, source: Source, descriptor: Descriptor, progress: Progress) -> Path:
        with self.transfer(source, [descriptor], progress) as transfer:
            return transfer.finish()[0]

    @contextmanager
    def transfer(
        self, source: Source, descriptors: Sequence[Descriptor], progress: Progress
    ) -> Iterator[Transfer]:
        """Begin to receive (or read in place) several blobs; see `Transfer.finish` for errors.

        `progress` gets counts of bytes that are there: at once of those that already were. When
        the context ends early, what has arrived is kept.
        """
        arrivals = Arrivals()
        downloads: list[Download] = []

        def want(blob: Blob, start: int, end: int) -> None:
            for download in downloads:
                download.schedule.want(blob, start, end)

        with ExitStack() as stack:
            local = [source.local_path(descriptor) for descriptor in descriptors]
            pairs = list(zip(descriptors, local, strict=True))
            # In one order whoever asks, so that two transfers never wait for each other.
            for name in sorted({f"blob-{parse_digest(d.digest)}" for d, path in pairs if not path}):
                stack.enter_context(self.home.lock(name))
            blobs = []
            for descriptor, path in pairs:
                blob = self._blob(descriptor, path, arrivals, progress, want)
                stack.callback(_release, blob, arrivals)
                blobs.append(blob)
                progress(blob.size - blob.missing().size)
            stack.callback(arrivals.cancel)
            if any(blob.missing() for blob in blobs):
                downloads.append(
                    Download(
                        source,
                        blobs,
                        arrivals,
                        policy=self.ranges,
                        stalls=self.stalls,
                        sleep=self.sleep,
                    )
                )
            transfer = Transfer(blobs, arrivals, downloads[0] if downloads else None)
            transfer.start()
            yield transfer

    def missing_bytes(self, source: Source, descriptor: Descriptor) -> int:
        """Bytes that receiving the blob would add to the file system of the home."""
        if source.local_path(descriptor) is not None:
            return 0
        path = self.home.blob(descriptor.digest)
        if path.exists():
            return 0
        partial = _partial(path)
        allocated = partial.stat().st_blocks * 512 if partial.exists() else 0
        return max(0, descriptor.size - allocated)

    def _blob(
        self,
        descriptor: Descriptor,
        local: Path | None,
        arrivals: Arrivals,
        progress: Progress,
        want: Callable[[Blob, int, int], None],
    ) -> Blob:
        """A blob where it lies, or the partial one with what an earlier transfer left of it."""
        final = self.home.blob(descriptor.digest)
        if local is None and final.exists() and final.stat().st_size != descriptor.size:
            final.unlink()
        if local is not None or final.exists():
            path = local or final
            if (size := path.stat().st_size) != descriptor.size:
                raise wrong_size(descriptor, f"{size} bytes")
            return Blob(
                descriptor, path, arrivals, RangeSet([(0, size)]), final=path, kept=local is None
            )
        final.parent.mkdir(parents=True, exist_ok=True)
        partial = _partial(final)
        _allocate(partial, descriptor.size)
        held = recover(partial, descriptor)
        return Blob(
            descriptor,
            partial,
            arrivals,
            held,
            final=final,
            journal=Journal(partial),
            progress=progress,
            wanted=want,
        )


def _allocate(partial: Path, size: int) -> None:
    """Make the file as long as it will be: a disk without the room for it says so now."""
    try:
        with partial.open("ab") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, max(size, 1))
            except OSError as error:
                # Some file systems cannot; on these a full disk shows later.
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    raise
            os.ftruncate(file.fileno(), size)
    except OSError:
        if not journal_path(partial).exists():
            discard(partial)
        raise


def _release(blob: Blob, arrivals: Arrivals) -> None:
    """Leave of an unfinished blob what the next transfer can use."""
    blob.close()
    if not blob.partial or not blob.path.exists():
        return
    nothing = blob.size > 0 and blob.missing().size == blob.size
    if nothing or isinstance(arrivals.error, VerificationError):
        discard(blob.path)


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def _wrong_digest(blob: Blob, found: str, kind: type[VerificationError]) -> VerificationError:
    return kind(
        f"the blob {blob_name(blob.descriptor)} has the wrong digest",
        expected=blob.descriptor.digest,
        found=found,
        remedy="the store is damaged or not to be trusted; try another one",
    )
