"""Who uses a directory: processes of this machine that run from it.

A process counts when its environment says so (``KVREG_RUNTIME``), when it has a file of the
directory mapped (shared objects are), or when it works in it. What a Python process has merely
imported and closed cannot be seen, nor, without privileges, the processes of other users.
"""

import os
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_SHOWN = 120


@dataclass(frozen=True)
class User:
    """A process and its command line, shortened."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"{self.pid} ({self.command})"


def users(folder: Path) -> tuple[User, ...]:
    """The processes that use `folder`, this one left out; none where there is no ``/proc``."""
    found = []
    wanted = os.fsencode(folder.resolve())
    for process in _PROC.glob("[0-9]*"):
        if int(process.name) != os.getpid() and _uses(process, wanted):
            words = _read(process / "cmdline").replace(b"\0", b" ").decode("utf-8", "replace")
            found.append(User(int(process.name), words.strip()[:_SHOWN]))
    return tuple(sorted(found, key=lambda user: user.pid))


def _uses(process: Path, folder: bytes) -> bool:
    variables = _read(process / "environ").split(b"\0")
    if any(
        variable.startswith(b"KVREG_RUNTIME=") and _resolved(variable[14:]) == folder
        for variable in variables
    ):
        return True
    inside = folder + b"/"
    if any(line.partition(b"/")[2].startswith(inside[1:]) for line in _maps(process)):
        return True
    try:
        return (os.fsencode((process / "cwd").readlink()) + b"/").startswith(inside)
    except OSError:
        return False


def _maps(process: Path) -> list[bytes]:
    return _read(process / "maps").splitlines()


def _resolved(path: bytes) -> bytes:
    return os.path.realpath(path)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        # It ended meanwhile, or is another user's.
        return b""
