"""Files that appear whole or not at all, and a lock between processes."""

import contextlib
import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from kvreg.console import storage_error
from kvreg.errors import StorageError

INCOMING_PREFIX = ".incoming-"
_STALE_SECONDS = 24 * 3600
_FLUSH_BYTES = 32 << 20


@contextlib.contextmanager
def atomic_file(destination: Path, scratch: Path | None = None) -> Iterator[BinaryIO]:
    """A new file that is renamed to `destination` when the block ends without an error.

    It is written in `scratch` (default: beside the destination; the same file system), flushed to
    the disk before the rename, and removed when the block fails.
    """
    temporary = (scratch or destination.parent) / f"{INCOMING_PREFIX}{secrets.token_hex(8)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as stream:
            yield stream
            os.fsync(stream.fileno())
        temporary.replace(destination)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
    sync_directory(destination.parent)


def write_atomically(
    destination: Path, chunks: Iterable[bytes], scratch: Path | None = None
) -> None:
    """Write `chunks` to `destination`, which appears whole or not at all."""
    with atomic_file(destination, scratch) as stream, _Flusher(stream.fileno()) as flusher:
        for chunk in chunks:
            write_all(stream, chunk)
            flusher.wrote(len(chunk))


class _Flusher:
    """Brings what was written to the disk while more arrives, so that the flush at the end, which
    the rename waits for, has little left to do."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pool = ThreadPoolExecutor(1, "flush")
        self._pending: Future[None] | None = None
        self._written = 0

    def __enter__(self) -> "_Flusher":
        return self

    def __exit__(self, *error: object) -> None:
        # The descriptor must not be closed, and perhaps used anew, while it is flushed.
        self._pool.shutdown(wait=True)
        self._check()

    def wrote(self, count: int) -> None:
        """Count bytes; every so many of them a flush begins, unless one is under way."""
        self._written += count
        if self._written < _FLUSH_BYTES or (self._pending and not self._pending.done()):
            return
        self._check()
        self._written = 0
        self._pending = self._pool.submit(os.fdatasync, self._descriptor)

    def _check(self) -> None:
        # The kernel reports a fault of the disk once: this flush may be the one that hears of it.
        if self._pending is not None:
            self._pending.result()


def write_all(stream: BinaryIO, data: bytes) -> None:
    """Write all of `data` to an unbuffered file, which may take less at a time."""
    view = memoryview(data)
    while view:
        view = view[stream.write(view) :]


def sync_directory(path: Path) -> None:
    """Make a rename in `path` survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a directory; the rename itself was done.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def remove_stale(directory: Path) -> int:
    """Remove what killed writers left more than a day ago; the number of files removed."""
    count = 0
    for path in directory.glob(f"{INCOMING_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()
                count += 1
    return count


@contextlib.contextmanager
def locked(path: Path, timeout: float = 60.0) -> Iterator[None]:
    """Hold an exclusive lock on the file at `path`, between threads and between processes.

    `StorageError` when another holder does not let go within `timeout` seconds. The kernel frees
    the lock of a process that dies, so a lock file that is left over means nothing.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _acquire(descriptor, path, timeout)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: Path, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    pause = 0.002
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StorageError(
                    f"another process holds the lock {path}",
                    expected=f"a free lock within {timeout:.0f} s",
                    remedy="wait for the other process to end, or end it, and try again",
                ) from None
        except OSError as error:
            raise storage_error(error, f"could not lock {path}") from error
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
