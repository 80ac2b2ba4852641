"""A wheel as a zip file: its members, its metadata, and its RECORD. Nothing in it is executed."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import mmap
import os
import re
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from email.policy import compat32
from pathlib import Path, PurePosixPath
from typing import Self

from builder.fatbin import Buffer
from kvreg.errors import NotFoundError, VerificationError

MAX_UNPACKED = 32 << 30
"""Bytes that a wheel may unpack to; far beyond any real one."""

_CHUNK = 1 << 20
_IN_MEMORY = 4 << 20
_UNHASHED = ("RECORD", "RECORD.jws", "RECORD.p7s")
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


@dataclass(frozen=True)
class RecordRow:
    """One line of RECORD; `sha256` is base64 as written there, None when the line has no hash."""

    path: str
    algorithm: str | None
    digest: str | None
    size: int | None


class Wheel:
    """An open wheel. Use as a context manager; reading members from several threads is fine.

    `filename` replaces the file's own name, which in a content-addressed cache is a digest.
    """

    def __init__(self, path: Path, filename: str | None = None) -> None:
        self.path = path
        self.filename = filename or path.name
        try:
            self.size = path.stat().st_size
            self._zip = zipfile.ZipFile(path)
        except FileNotFoundError:
            raise NotFoundError(f"there is no wheel {path}", remedy="name a .whl file") from None
        except (*_DAMAGE, OSError) as error:
            raise _damaged(path.name, str(error)) from error
        self.members = tuple(info for info in self._zip.infolist() if not info.is_dir())
        self.dist_info = self._find_dist_info()
        if (total := sum(info.file_size for info in self.members)) > MAX_UNPACKED:
            found = f"{total:,} bytes, more than the {MAX_UNPACKED:,} that are read"
            raise _damaged(self.filename, found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def sha256(self, progress: Callable[[int], object] | None = None) -> str:
        """The hex digest of the whole file; `progress` is called with each number of bytes."""
        digest = hashlib.sha256()
        with self.path.open("rb") as handle:
            while chunk := handle.read(_CHUNK):
                digest.update(chunk)
                if progress:
                    progress(len(chunk))
        return digest.hexdigest()

    def read(self, name: str) -> bytes | None:
        """The bytes of a small member, or None when there is no such member."""
        try:
            with self._zip.open(name) as handle:
                return handle.read(64 << 20)
        except KeyError:
            return None
        except _DAMAGE as error:
            raise _damaged(self.filename, f"{name}: {error}") from error

    @contextmanager
    def open(self, member: zipfile.ZipInfo) -> Iterator[tuple[Buffer, bytes]]:
        """The unpacked bytes of a member and their sha256, read once.

        Large members lie in a temporary file that is mapped, so that memory stays bounded.
        Raises VerificationError for damaged data.
        """
        digest = hashlib.sha256()
        if member.file_size <= _IN_MEMORY:
            with self._unpacking(member) as source:
                data = source.read()
                self._check_size(member, len(data))
            digest.update(data)
            yield data, digest.digest()
            return
        with tempfile.TemporaryFile(prefix="wheel-member-") as target:
            with self._unpacking(member) as source:
                while chunk := source.read(_CHUNK):
                    digest.update(chunk)
                    target.write(chunk)
                self._check_size(member, target.tell())
            target.flush()
            with mmap.mmap(target.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                yield mapped, digest.digest()

    @contextmanager
    def _unpacking(self, member: zipfile.ZipInfo) -> Iterator[zipfile.ZipExtFile]:
        try:
            with self._zip.open(member) as source:
                yield source  # type: ignore[misc]
        except _DAMAGE as error:
            raise _damaged(self.filename, f"{member.filename}: {error}") from error

    def _check_size(self, member: zipfile.ZipInfo, size: int) -> None:
        if size != member.file_size:
            found = f"{member.filename}: {size} bytes, not {member.file_size}"
            raise _damaged(self.filename, found)

    def _find_dist_info(self) -> str | None:
        folders = {
            info.filename.split("/")[0]
            for info in self.members
            if info.filename.split("/")[0].endswith(".dist-info")
        }
        return folders.pop() if len(folders) == 1 else None

    def metadata(self) -> Message:
        """METADATA's headers; empty when the wheel has none."""
        return self._headers("METADATA")

    def wheel_metadata(self) -> Message:
        """WHEEL's headers; empty when the wheel has none."""
        return self._headers("WHEEL")

    def _headers(self, name: str) -> Message:
        raw = self.read(f"{self.dist_info}/{name}") if self.dist_info else None
        return BytesParser(policy=compat32).parsebytes(raw or b"", headersonly=True)

    def record(self) -> tuple[RecordRow, ...] | None:
        """RECORD's lines, or None when there is none or it is not readable."""
        raw = self.read(f"{self.dist_info}/RECORD") if self.dist_info else None
        if raw is None:
            return None
        try:
            rows = [row for row in csv.reader(io.StringIO(raw.decode("utf-8"))) if row]
        except (UnicodeDecodeError, csv.Error):
            return None
        return tuple(_record_row(row) for row in rows)

    def is_unhashed(self, path: str) -> bool:
        """Whether a member is one that RECORD cannot hold a hash of: RECORD and its signatures."""
        return path in [f"{self.dist_info}/{name}" for name in _UNHASHED]


def record_digest(digest: bytes) -> str:
    """A hash as RECORD writes it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def member_problem(info: zipfile.ZipInfo) -> str | None:
    """Why a member must not be in a wheel (it leaves the target, or is no file), or None."""
    name = info.filename
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        return "its path leaves the wheel"
    if str(path) != name or any(part in ("", ".") for part in name.split("/")):
        return "its path is not in plain form"
    mode = info.external_attr >> 16
    if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return "it is a link or a device, not a file"
    if info.flag_bits & 1:
        return "it is encrypted"
    return None


def _record_row(row: list[str]) -> RecordRow:
    path, hashed, size = [*row, "", ""][:3]
    algorithm, _, digest = hashed.partition("=")
    return RecordRow(
        path=path.replace(os.sep, "/"),
        algorithm=algorithm or None,
        digest=digest or None,
        size=int(size) if re.fullmatch(r"[0-9]{1,18}", size) else None,
    )


def _damaged(name: str, found: str) -> VerificationError:
    return VerificationError(
        f"{name} is not a whole wheel",
        expected="a zip file whose members unpack to their recorded size and checksum",
        found=found,
        remedy="fetch or build it again",
    )
