"""Files of earlier runtimes that need not be unpacked again.

A file counts when RECORD of an earlier runtime names the same hash and size; whether its bytes
still have that hash is computed here, every time. It is then cloned, where the file system can
share blocks between files (btrfs, XFS, …), and hard-linked where it cannot (ext4).

A hard link is one file under two names. Staged files are read and never written by whatever uses
a runtime (bytecode goes into files of its own), so it is safe in use; who edits a file *in place*
changes it in both runtimes, and `kvreg verify` then names it in both. Editors that write a new
file and rename it change one alone.
"""

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvreg.wheel.record import RecordRow

# linux/fs.h: _IOW(0x94, 9, int)
_FICLONE = 0x40049409
_CHUNK = 1 << 20

Key = tuple[str | None, bytes | None, int | None]


@dataclass(frozen=True)
class EarlierFiles:
    """Where files of a hash and size lie; empty when there is nothing to take them from."""

    places: Mapping[Key, str] = field(default_factory=dict)

    @classmethod
    def of(cls, runtimes: Iterable[tuple[Path, Mapping[str, RecordRow]]]) -> "EarlierFiles":
        """Collect rows of earlier runtimes by path, each with what the paths are relative to."""
        places: dict[Key, str] = {}
        for site, rows in runtimes:
            for path, row in rows.items():
                # An empty file has nothing to share.
                if row.digest is not None and row.size:
                    places.setdefault((row.algorithm, row.digest, row.size), f"{site}/{path}")
        return cls(places)

    def place(self, row: RecordRow, size: int, target: str, mode: int) -> bool:
        """Make `target`, with `mode`, of a file with the row's bytes, if there is one."""
        path = self.places.get((row.algorithm, row.digest, size))
        if path is None:
            return False
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or not _has_bytes(handle, row, size):
                return False
            return _cloned(handle, target, mode) or _linked(handle, status, target, mode)
        finally:
            os.close(handle)


def _has_bytes(handle: int, row: RecordRow, size: int) -> bool:
    state = hashlib.new(row.algorithm or "sha256")
    buffer = memoryview(bytearray(min(_CHUNK, size)))
    found = 0
    while count := os.preadv(handle, [buffer], found):
        state.update(buffer[:count])
        found += count
        if found > size:
            return False
    return found == size and state.digest() == row.digest


def _cloned(handle: int, target: str, mode: int) -> bool:
    copy = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        fcntl.ioctl(copy, _FICLONE, handle)
        os.fchmod(copy, mode)
    except OSError as error:
        os.unlink(target)  # noqa: PTH108
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    finally:
        os.close(copy)
    return True


def _linked(handle: int, status: os.stat_result, target: str, mode: int) -> bool:
    # Links share owner and mode, so these must be what a new file would have.
    if stat.S_IMODE(status.st_mode) != mode or status.st_uid != os.geteuid():
        return False
    try:
        handles = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # The file that was hashed, whatever its old name means by now. (Links are followed only
        # where the function is told of a directory.)
        os.link(str(handle), target, src_dir_fd=handles, follow_symlinks=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        # Another file system, too many links: written again instead.
        return False
    finally:
        os.close(handles)
    return True
