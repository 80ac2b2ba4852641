"""Writes the thin wheel: upstream's members as they are packed, thinned modules, new metadata.

The same wheel comes out wherever it is made: what upstream packed is copied as it is packed, and
what is new is packed by libdeflate at a pinned release and level, never by the machine's own zlib.

What changes beside the modules is the version, with a local part that says what was done, and so
METADATA, the name of ``.dist-info``, RECORD, and WHEEL's tag: the wheel is meant for the profile's
host. Python files, ``__version__`` in them included, are upstream's.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import deflate

from builder.audit.wheel import Wheel, member_problem
from builder.thin_check import check_module
from builder.thin_module import thin_module
from builder.thin_plan import WheelPlan
from kvreg.errors import ContractError, Problem, VerificationError
from kvreg.model.profile import Profile
from kvreg.wheel.record import RecordRow, read_record, write_record

_LEVEL = 12
_CHUNK = 1 << 20
_MODE = (stat.S_IFREG | 0o644) << 16
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")


@dataclass(frozen=True)
class Thinned:
    """A thin wheel. `facts` are JSON-ready: upstream, architectures, modules, dropped members."""

    wheel: Path
    facts: dict[str, Any]


@dataclass(frozen=True)
class Naming:
    """Old and new names: `info` are ``.dist-info`` folders, `filename` the new wheel's."""

    version: str
    new_version: str
    info: str
    new_info: str
    filename: str
    tag: str

    def member(self, path: str) -> str:
        """The path of a member in the new wheel."""
        if path.startswith(f"{self.info}/"):
            return self.new_info + path.removeprefix(self.info)
        return path


def name_thin(wheel: Wheel, profile: Profile) -> Naming:
    """The names of the thin wheel.

    Raises ContractError unless the profile's version is upstream's with a local part of its own.
    """
    metadata = wheel.metadata()
    name, version = str(metadata["Name"]).strip(), str(metadata["Version"]).strip()
    new = profile.runtime.version
    if wheel.dist_info is None or new.partition("+")[0] != version or not new.partition("+")[2]:
        raise ContractError(
            f"{wheel.filename} is not what {profile.name} is thinned from",
            expected=f"one .dist-info, and version {new.partition('+')[0]}, of which"
            " runtime.version names a local part",
            found=f"{wheel.dist_info}, version {version}; runtime.version {new}",
        )
    python = profile.host.python_tag.validated
    stem = re.sub(r"[-_.]+", "_", name).lower()
    tag = f"{python}-{python}-linux_{profile.host.arch.validated}"
    return Naming(
        version, new, wheel.dist_info, f"{stem}-{new}.dist-info", f"{stem}-{new}-{tag}.whl", tag
    )


def write_thin(
    wheel: Wheel,
    plan: WheelPlan,
    profile: Profile,
    out: Path,
    progress: Callable[[int], object] | None = None,
) -> Thinned:
    """Write the thin wheel into the folder `out`, where it appears in one step.

    Every thinned module is compared with upstream's before it is packed. `progress` is called with
    numbers of unpacked bytes. Raises VerificationError for a wheel that is not whole, that
    disagrees with its RECORD, or whose thinning went wrong; ContractError for another version.
    """
    naming = name_thin(wheel, profile)
    rows = _rows(wheel, naming)
    target = out / naming.filename
    out.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with temporary.open("w+b") as stream:
            modules = _Writer(wheel, plan, naming, rows, stream).write(progress)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    facts = plan.to_dict()
    for item in facts["modules"]:
        item.update(modules[item["path"]])
    upstream = {"filename": wheel.filename, "size": wheel.size, "sha256": wheel.sha256()}
    return Thinned(target, {"upstream": upstream, **facts})


def _rows(wheel: Wheel, naming: Naming) -> dict[str, RecordRow]:
    """RECORD's rows under upstream's paths, each checked for being there and plain."""
    record = f"{naming.info}/RECORD"
    rows, problems = read_record(wheel.read(record) or b"", record)
    names = [info.filename for info in wheel.members]
    problems += [
        Problem(name, "is there twice") for name in {n for n in names if names.count(n) > 1}
    ]
    for info in wheel.members:
        if text := member_problem(info):
            problems.append(Problem(info.filename, text))
        row = rows.get(info.filename)
        unhashed = info.filename == record or info.filename.endswith(_SIGNATURES)
        if row is None or (not unhashed and row.digest is None):
            problems.append(Problem(info.filename, "has no hash in RECORD"))
    problems += [Problem(p, "is not there") for p in rows if p not in set(names)]
    if problems:
        raise VerificationError(f"{wheel.filename} cannot be thinned", problems=problems)
    return rows


class _Writer:
    """Writes one wheel, member by member, in upstream's order with RECORD last."""

    def __init__(
        self,
        wheel: Wheel,
        plan: WheelPlan,
        naming: Naming,
        rows: dict[str, RecordRow],
        stream: IO[bytes],
    ) -> None:
        self.wheel, self.plan, self.naming, self.old = wheel, plan, naming, rows
        self.archive = zipfile.ZipFile(stream, "w")
        self.rows: list[RecordRow] = []
        self.modules: dict[str, dict[str, Any]] = {}

    def write(self, progress: Callable[[int], object] | None) -> dict[str, dict[str, Any]]:
        """Everything; returns size and sha256 before and after of each planned module."""
        info = self.naming.info
        skipped = {f"{info}/RECORD", *(f"{info}/{n}" for n in _SIGNATURES), *self.plan.wanted.drop}
        with self.archive, self.wheel.path.open("rb") as source:
            for member in self.wheel.members:
                if member.filename not in skipped:
                    self._member(member, source)
                if progress:
                    progress(member.file_size)
            record = f"{self.naming.new_info}/RECORD"
            text = write_record([*self.rows, RecordRow(record, None, None, None)])
            dated = self.wheel.members[-1].date_time
            self._new(zipfile.ZipInfo(record, dated), text, listed=False)
        return self.modules

    def _member(self, member: zipfile.ZipInfo, source: IO[bytes]) -> None:
        plan = self.plan.module(member.filename)
        if plan is not None:
            with self.wheel.open(member) as (data, digest):
                self._require(member.filename, digest)
                new = thin_module(data, plan)
                if new is not None:
                    check_module(data, new, plan)
                before = {"size": len(data), "sha256": digest.hex()}
            after = before
            if new is not None:
                after = {"size": len(new), "sha256": hashlib.sha256(new).hexdigest()}
                self._new(_same(member, member.filename), new)
            self.modules[member.filename] = {"before": before, "after": after}
            if new is not None:
                return
        changed = {"METADATA": self._metadata, "WHEEL": self._tags}
        for name, change in changed.items():
            if member.filename == f"{self.naming.info}/{name}":
                text = change(self.wheel.read(member.filename) or b"")
                self._new(_same(member, self.naming.member(member.filename)), text)
                return
        with self.wheel.open(member) as (data, digest):
            self._require(member.filename, digest)
            size = len(data)
        path = self.naming.member(member.filename)
        self.rows.append(RecordRow(path, "sha256", digest, size))
        self._copy(member, path, source)

    def _require(self, path: str, digest: bytes) -> None:
        row = self.old[path]
        if row.algorithm == "sha256" and row.digest != digest:
            raise VerificationError(
                f"{path} of {self.wheel.filename} is not what RECORD says",
                expected=row.digest.hex() if row.digest else None,
                found=digest.hex(),
            )

    def _metadata(self, raw: bytes) -> bytes:
        old, new = self.naming.version.encode(), self.naming.new_version.encode()
        head, separator, body = raw.partition(b"\n\n")
        changed, count = re.subn(
            rb"(?m)^(Version:\s*)" + re.escape(old) + rb"\s*$", rb"\g<1>" + new, head
        )
        if count != 1:
            raise VerificationError("METADATA has no one line with the version")
        return changed + separator + body

    def _tags(self, raw: bytes) -> bytes:
        lines = [line for line in raw.decode("utf-8").splitlines() if not line.startswith("Tag:")]
        while lines and not lines[-1]:
            lines.pop()
        return ("\n".join([*lines, f"Tag: {self.naming.tag}"]) + "\n\n").encode()

    def _new(self, info: zipfile.ZipInfo, data: bytes, *, listed: bool = True) -> None:
        packed = deflate.deflate_compress(data, _LEVEL)
        info.compress_type = zipfile.ZIP_DEFLATED
        if len(packed) >= len(data):
            packed, info.compress_type = data, zipfile.ZIP_STORED
        info.CRC, info.file_size, info.compress_size = zlib.crc32(data), len(data), len(packed)
        if not listed:
            info.external_attr, info.create_system = _MODE, 3
        else:
            digest = hashlib.sha256(data).digest()
            self.rows.append(RecordRow(info.filename, "sha256", digest, len(data)))
        self._header(info)
        self._stream.write(packed)

    def _copy(self, member: zipfile.ZipInfo, path: str, source: IO[bytes]) -> None:
        source.seek(member.header_offset)
        header = source.read(30)
        names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        source.seek(member.header_offset + 30 + names)
        info = _same(member, path)
        info.compress_type, info.CRC = member.compress_type, member.CRC
        info.file_size, info.compress_size = member.file_size, member.compress_size
        self._header(info)
        left = member.compress_size
        while left:
            chunk = source.read(min(left, _CHUNK))
            if not chunk:
                raise VerificationError(f"{self.wheel.filename} is not a whole wheel")
            self._stream.write(chunk)
            left -= len(chunk)

    @property
    def _stream(self) -> IO[bytes]:
        assert self.archive.fp is not None
        return self.archive.fp

    def _header(self, info: zipfile.ZipInfo) -> None:
        """The local header; the library has no way of adding what is packed already."""
        info.header_offset = self._stream.tell()
        self._stream.write(info.FileHeader())
        self.archive.filelist.append(info)
        self.archive.NameToInfo[info.filename] = info
        self.archive._didModify = True  # type: ignore[attr-defined]
        self.archive.start_dir = info.header_offset + len(info.FileHeader()) + info.compress_size


def _same(member: zipfile.ZipInfo, path: str) -> zipfile.ZipInfo:
    """A header with the member's date and mode, and nothing else of how it was packed."""
    info = zipfile.ZipInfo(path, member.date_time)
    info.external_attr, info.create_system = member.external_attr, member.create_system
    return info
