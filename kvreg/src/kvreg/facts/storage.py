"""The file systems that matter: shared memory, home, temporary files, and kvreg's home."""

import os
import shutil
import tempfile
from pathlib import Path

from kvreg.facts.machine import Machine
from kvreg.facts.model import Disk
from kvreg.home import Home


def disks(machine: Machine, home: Path | None = None) -> tuple[Disk, ...]:
    """Total and free bytes of each; one that cannot be asked is left out, with a reason."""
    places = {
        "shm": machine.path("/dev/shm"),
        "home": Path.home(),
        "tmp": Path(tempfile.gettempdir()),
        "kvreg-home": Home.find(home).root,
    }
    found = []
    for use, path in places.items():
        existing = _existing(path)
        try:
            usage = shutil.disk_usage(existing)
        except OSError as error:
            machine.miss(f"disks.{use}", f"{path}: {error.strerror}")
            continue
        if use == "shm" and existing != path:
            machine.miss("disks.shm", f"there is no {path}")
            continue
        writable = os.access(existing, os.W_OK | os.X_OK)
        found.append(Disk(use, str(path), usage.total, usage.free, writable))
    return tuple(found)


def _existing(path: Path) -> Path:
    """The path, or the nearest of its parents that exists: the file system it would be made on."""
    return next((item for item in (path, *path.parents) if item.exists()), Path("/"))
