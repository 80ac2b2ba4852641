"""When a staged runtime may be trusted after a crash, without waiting for the disk at every pull.

A process that is killed takes nothing back of what it has written: the kernel has it. Only a crash
of the machine can lose it, and then, with most file systems, a file that is named and long enough
may hold zeros. Waiting for the disk would guard against that; on a notebook's network disk that is
many seconds for a gigabyte, and a notebook whose machine crashed gets a new, empty disk.

So a new runtime is marked with the boot that it was written under instead. Under the same boot it
is whole; under another one it is hashed before it is used, once, and the mark goes. Where the
system has no boot id, or where a runtime that was there before is at stake, the disk is waited for.
"""

import contextlib
import os
import shutil
from pathlib import Path

_MARK = ".written-under"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def appear(folder: Path, final: Path) -> Path:
    """Rename a finished runtime to its final name, one of that name out of the way."""
    boot = _boot_id()
    if boot is None or final.exists():
        _sync(folder)
    else:
        (folder / _MARK).write_text(boot)
    old = final.with_name(f".old-{final.name}")
    remove(old)
    if final.exists():
        final.rename(old)
    folder.rename(final)
    _fsync_directory(final.parent)
    remove(old)
    return final


def is_settled(folder: Path) -> bool:
    """Whether what was written of a runtime is there for certain: no crash can have lost it."""
    try:
        return (folder / _MARK).read_text() == _boot_id()
    except FileNotFoundError:
        return True


def settle(folder: Path) -> None:
    """Say that every byte of a runtime was found to be right, by reading it."""
    with contextlib.suppress(OSError):
        if not is_settled(folder):
            (folder / _MARK).unlink()


def unsettle(folder: Path) -> None:
    """Say that a runtime was found to differ: the next pull hashes it, and makes it anew."""
    with contextlib.suppress(OSError):
        (folder / _MARK).write_text("found to differ")


def remove(folder: Path) -> None:
    """Remove a directory, if it is there."""
    if folder.exists():
        shutil.rmtree(folder)


def _boot_id() -> str | None:
    try:
        return _BOOT_ID.read_text().strip() or None
    except OSError:
        return None


def _sync(folder: Path) -> None:
    """Bring everything below `folder` to the disk before its name says that it is complete."""
    import ctypes  # seldom

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
