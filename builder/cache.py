"""The input cache: every downloaded byte, kept under its own sha256."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvreg.errors import StorageError, VerificationError

CHUNK = 1 << 20


def default_cache_root() -> Path:
    """``$KVREG_BUILD_CACHE``, or ``kvreg-builder`` in the user's cache folder."""
    configured = os.environ.get("KVREG_BUILD_CACHE")
    if configured:
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "kvreg-builder"


@contextmanager
def storage_errors(what: str, path: Path) -> Iterator[None]:
    """Turn an OSError on `path` into a StorageError that says what was being done."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot {what} {path}",
            found=error.strerror or str(error),
            remedy="free space or fix permissions there, or point KVREG_BUILD_CACHE elsewhere",
        ) from error


class InputCache:
    """Content-addressed files: ``sha256/<first two hex>/<hex>``, partial ones beside them.

    A file appears under its final name only after its bytes were hashed, by one rename.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = Path(root) if root is not None else default_cache_root()

    def path(self, sha256: str) -> Path:
        """Where the bytes with this hex digest are, or will be."""
        return self.root / "sha256" / sha256[:2] / sha256

    def partial(self, sha256: str) -> Path:
        """Where an unfinished download of it is kept, to be gone on with."""
        return self.root / "partial" / f"{sha256}.part"

    def has(self, sha256: str) -> bool:
        return self.path(sha256).is_file()

    def folder(self, name: str) -> Path:
        """A named working folder of the cache (``debootstrap``, ``ccache``), made when absent."""
        folder = self.root / name
        with storage_errors("make folder", folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def put(self, source: Path, sha256: str, *, move: bool = False) -> Path:
        """Take a finished file in.

        Raises VerificationError when its bytes do not have this digest (the file is left
        where it is), StorageError when it cannot be written.
        """
        found = file_sha256(source)
        if found != sha256:
            raise VerificationError(
                f"{source.name} does not have the locked digest",
                expected=f"sha256:{sha256}",
                found=f"sha256:{found}",
                remedy="the bytes at the source changed; fetch again, else lock anew",
            )
        target = self.path(sha256)
        with storage_errors("store", target):
            target.parent.mkdir(parents=True, exist_ok=True)
            if move:
                with source.open("rb+") as handle:
                    os.fsync(handle.fileno())
                source.replace(target)
            else:
                temporary = target.with_name(f".{target.name}.{os.getpid()}")
                shutil.copyfile(source, temporary)
                with temporary.open("rb+") as handle:
                    os.fsync(handle.fileno())
                temporary.replace(target)
            target.chmod(0o444)
        return target

    def put_bytes(self, data: bytes, sha256: str) -> Path:
        """Take bytes in, under the same rules as `put`."""
        partial = self.partial(f"{sha256}.{os.getpid()}")
        with storage_errors("write", partial):
            partial.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(data)
        try:
            return self.put(partial, sha256, move=True)
        except VerificationError:
            partial.unlink(missing_ok=True)
            raise


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file, read in chunks of 1 MiB."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
