"""The client's own directory: blobs by digest, runtimes by profile digest, locks.

::

    <home>/blobs/sha256/<hex>             verified blobs; <hex>.partial while they arrive
    <home>/runtimes/<hex>/                a staged runtime: site/, runtime.json, profile.json
    <home>/runtimes/.staging-<hex>/       one that is being made
    <home>/pycache/                       compiled files of what ran with a runtime
    <home>/client/                        what ``kvreg.pyz`` unpacked
    <home>/locks/                         what is being worked on

The home is ``--home``, else ``$KVREG_HOME``, else ``~/.local/share/kvreg``.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvreg.errors import StorageError
from kvreg.model.digest import parse_digest

ENVIRONMENT = "KVREG_HOME"

# Left free on the file system, for logs and caches of whoever uses the runtime.
_RESERVE = 64 << 20


@dataclass(frozen=True)
class Home:
    """One home directory. Nothing is created before it is needed."""

    root: Path

    @classmethod
    def find(cls, chosen: Path | None = None) -> "Home":
        """The home that was chosen, or the one of the environment, or the default."""
        if chosen is None and (named := os.environ.get(ENVIRONMENT)):
            chosen = Path(named)
        return cls((chosen or Path.home() / ".local" / "share" / "kvreg").expanduser().absolute())

    @property
    def runtimes(self) -> Path:
        """The directory of all staged runtimes."""
        return self.root / "runtimes"

    def blob(self, digest: str) -> Path:
        """Where the blob of a digest is kept."""
        return self.root / "blobs" / "sha256" / parse_digest(digest)

    def runtime(self, profile_digest: str) -> Path:
        """Where the runtime of a profile digest is."""
        return self.runtimes / parse_digest(profile_digest)

    def staging(self, profile_digest: str) -> Path:
        """Where the runtime of a profile digest is made, beside its final place."""
        return self.runtimes / f".staging-{parse_digest(profile_digest)}"

    @property
    def pycache(self) -> Path:
        """Where compiled files of staged runtimes go, by the path of their source."""
        return self.root / "pycache"

    def compiled(self, folder: Path) -> Path:
        """Where the compiled files of the sources in `folder` are."""
        return self.pycache / folder.absolute().relative_to("/")

    @contextmanager
    def lock(
        self, name: str, waiting: Callable[[], object] = lambda: None, *, shared: bool = False
    ) -> Iterator[None]:
        """Hold a lock among processes; `waiting` is called once if another one holds it.

        Several may hold a `shared` one at once. The lock goes with the process, however it ends.
        """
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        path = self.root / "locks" / f"{name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(file, kind)
            yield

    def require_space(self, needed: int, purpose: str) -> None:
        """Raise `StorageError` unless `needed` bytes (and a reserve) are free."""
        self.root.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.root).free
        if needed and free < needed + _RESERVE:
            raise StorageError(
                f"too little disk space in {self.root} {purpose}",
                expected=f"{needed + _RESERVE:,} bytes free",
                found=f"{free:,} bytes",
                remedy="free some space, or choose a home on another file system with --home",
            )
