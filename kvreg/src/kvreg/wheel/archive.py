"""A wheel's archive, opened only when everything about its structure holds.

What is refused: names that are absolute, leave the directory, hold control characters or
backslashes, or collide (also by case, on file systems that fold it); links and devices; encrypted
members; overlapping data; sizes that no data could unpack to, or above what was declared; members
that RECORD does not list and the other way round; metadata that disagrees with the file name. All
faults are reported at once. What can be seen only while a member is unpacked (its local header, its
bytes) is compared then, see `kvreg.wheel.unpacking`.
"""

import re
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from packaging.utils import canonicalize_name

from kvreg.errors import Problem, VerificationError
from kvreg.wheel.content import Content, FileContent
from kvreg.wheel.localheader import SIZE as LOCAL_HEADER
from kvreg.wheel.record import RecordRow, read_record
from kvreg.wheel.tags import WheelName, same_name, same_version

DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError)
"""What reading a member can raise when its bytes are not what they should be."""

# Not absolute, of no drive, without a backslash or control characters, no part "", "." or "..".
_INSIDE = re.compile(
    r"(?![A-Za-z]:)(?:(?!\.{1,2}/)[^\x00-\x1f\x7f\\/]+/)*(?!\.{1,2}\Z)[^\x00-\x1f\x7f\\/]+"
)
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# What deflate can do at most: 258 bytes from two bits.
_MOST_RATIO = 1032
_MAX_METADATA = 16 << 20
_MAX_PROBLEMS = 50


class Member(NamedTuple):
    """One regular file of a wheel: its name, unpacked size, and whether it is executable.

    Its header and packed bytes lie between `start` and `end` of the archive.
    """

    name: str
    size: int
    executable: bool
    start: int
    end: int
    info: zipfile.ZipInfo
    row: RecordRow


class WheelArchive:
    """A checked wheel. Its members' bytes are compared with their `Member.row` by the reader.

    `wheel` is a file, or what is still arriving. `declared` is how many bytes the wheel
    may unpack to at most. Raises `VerificationError` with every fault found. Use as a context
    manager.
    """

    def __init__(
        self, wheel: Path | Content, name: WheelName, *, declared: int | None = None
    ) -> None:
        self.content = FileContent(wheel) if isinstance(wheel, Path) else wheel
        self.name = name
        self._declared = declared
        try:
            self._zip = zipfile.ZipFile(self.content.reader())
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            raise VerificationError(
                f"{name.filename} is not a zip archive", found=str(error)
            ) from None
        try:
            self._check()
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self) -> "WheelArchive":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._zip.close()
        if isinstance(self.content, FileContent):
            self.content.close()

    @property
    def unpacked_size(self) -> int:
        """Bytes of all members."""
        return sum(member.size for member in self.members)

    def read(self, member: Member) -> bytes:
        """All bytes of a small member (not verified)."""
        return self._small(member.info)

    def _check(self) -> None:
        infos = [info for info in self._zip.infolist() if not info.filename.endswith("/")]
        names = [info.orig_filename for info in self._zip.infolist()]
        problems = [*name_problems(names), *self._info_problems()]
        self._raise(problems)
        self.dist_info = self._find_dist_info(infos)
        self.data = self.dist_info.removesuffix(".dist-info") + ".data"
        by_name = {info.filename: info for info in infos}
        for needed in ("WHEEL", "METADATA", "RECORD"):
            if f"{self.dist_info}/{needed}" not in by_name:
                problems.append(Problem(f"{self.dist_info}/{needed}", "is missing"))
        self._raise(problems)
        record_name = f"{self.dist_info}/RECORD"
        rows, problems = read_record(self._small(by_name[record_name]), record_name)
        problems += self._record_problems(by_name, rows)
        problems += self._metadata_problems(by_name)
        self._raise(problems)
        unhashed = {f"{self.dist_info}/{name}" for name in ("RECORD", *_SIGNATURES)}
        self.record_name = record_name
        ends = self._ends()
        self.members = tuple(
            Member(
                name,
                info.file_size,
                _is_executable(info),
                info.header_offset,
                ends[info.header_offset],
                info,
                rows[name],
            )
            for name, info in by_name.items()
            if name not in unhashed
        )

    def _info_problems(self) -> Iterable[Problem]:
        ends = self._ends()
        total = 0
        for info in self._zip.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            allowed = stat.S_IFDIR if info.is_dir() else stat.S_IFREG
            if kind not in (0, allowed):
                yield Problem(info.filename, "is a link or special file", "a regular file")
            if info.flag_bits & 0x1:
                yield Problem(info.filename, "is encrypted")
            if info.compress_type not in _METHODS:
                yield Problem(info.filename, "is compressed in an unusual way", "deflate or none")
            elif not _is_possible(info):
                yield Problem(
                    info.filename,
                    "cannot have its size",
                    found=f"{info.file_size} bytes from {info.compress_size}",
                )
            if info.header_offset + LOCAL_HEADER + info.compress_size > ends[info.header_offset]:
                yield Problem(info.filename, "overlaps what follows it in the archive")
            total += info.file_size
        offsets = {info.header_offset for info in self._zip.infolist()}
        if len(offsets) != len(self._zip.infolist()):
            yield Problem(self.name.filename, "members overlap: several have the same bytes")
        if self._declared is not None and total > self._declared:
            yield Problem(
                self.name.filename,
                "unpacks to more than was declared",
                f"at most {self._declared} bytes",
                f"{total} bytes",
            )

    def _ends(self) -> dict[int, int]:
        """Where the bytes of what begins at an offset must end: at the next, or the directory."""
        starts = sorted({info.header_offset for info in self._zip.infolist()})
        return dict(zip(starts, [*starts[1:], self._zip.start_dir], strict=True))

    def _find_dist_info(self, infos: Sequence[zipfile.ZipInfo]) -> str:
        tops = {info.filename.partition("/")[0] for info in infos}
        found = sorted(top for top in tops if top.endswith(".dist-info"))
        if len(found) == 1:
            name, _, version = found[0].removesuffix(".dist-info").rpartition("-")
            if same_name(name, self.name.name) and same_version(version, self.name.version):
                return found[0]
        raise VerificationError(
            f"{self.name.filename} has no .dist-info directory of its own",
            expected=f"{canonicalize_name(self.name.name)}-{self.name.version}.dist-info alone",
            found=", ".join(found) or "none",
        )

    def _record_problems(
        self, members: dict[str, zipfile.ZipInfo], rows: dict[str, RecordRow]
    ) -> Iterable[Problem]:
        record = f"{self.dist_info}/RECORD"
        unhashed = {record, *(f"{self.dist_info}/{name}" for name in _SIGNATURES)}
        for name in sorted(members.keys() - rows.keys() - unhashed):
            yield Problem(name, "is in the wheel and not in RECORD")
        for name in sorted(rows.keys() - members.keys() - unhashed):
            yield Problem(name, "is in RECORD and not in the wheel")
        for name in sorted(rows.keys() & members.keys() - unhashed):
            row, info = rows[name], members[name]
            if row.digest is None:
                yield Problem(name, "has no hash in RECORD")
            if row.size is not None and row.size != info.file_size:
                yield Problem(
                    name, "has another size in RECORD", f"{row.size} bytes", f"{info.file_size}"
                )

    def _metadata_problems(self, members: dict[str, zipfile.ZipInfo]) -> Iterable[Problem]:
        path = f"{self.dist_info}/METADATA"
        metadata = _headers(self._small(members[path]))
        name, version = metadata.get("Name", ""), metadata.get("Version", "")
        if not same_name(str(name), self.name.name):
            yield Problem(path, "Name differs from the file name's", self.name.name, str(name))
        if not same_version(str(version), self.name.version):
            yield Problem(
                path, "Version differs from the file name's", self.name.version, str(version)
            )
        path = f"{self.dist_info}/WHEEL"
        wheel_version = str(_headers(self._small(members[path])).get("Wheel-Version", ""))
        if wheel_version.strip().partition(".")[0] != "1":
            yield Problem(path, "unknown Wheel-Version", "1.x", wheel_version)

    def _small(self, info: zipfile.ZipInfo) -> bytes:
        if info.file_size > _MAX_METADATA:
            raise VerificationError(
                f"{self.name.filename}: {info.filename} is too large",
                expected=f"at most {_MAX_METADATA} bytes",
                found=f"{info.file_size} bytes",
            )
        try:
            return self._zip.read(info)
        except DAMAGED as error:
            raise VerificationError(
                f"{self.name.filename}: {info.filename} cannot be read", found=str(error)
            ) from None

    def _raise(self, problems: Sequence[Problem]) -> None:
        if problems:
            raise VerificationError(
                f"the wheel {self.name.filename} is refused",
                problems=problems[:_MAX_PROBLEMS],
                found=f"{len(problems)} problems" if len(problems) > 1 else None,
                remedy="do not use this wheel; build and publish it again",
            )


def name_problems(names: Iterable[str]) -> Iterable[Problem]:
    """What is wrong with a set of member names; directories end in a slash."""
    files: dict[str, str] = {}
    folders: dict[str, str] = {}
    seen: set[str] = set()
    for name in names:
        if not _INSIDE.fullmatch(name.removesuffix("/")):
            yield Problem(repr(name)[1:-1], "is not a path inside the wheel")
            continue
        folder = name.rpartition("/")[0]
        while folder and folder not in seen:
            seen.add(folder)
            other = folders.setdefault(_fold(folder), folder)
            if other != folder:
                yield Problem(folder, "differs from another directory by case alone", found=other)
            folder = folder.rpartition("/")[0]
        if not name.endswith("/"):
            key = _fold(name)
            first = files.get(key)
            if first == name:
                yield Problem(name, "is in the wheel twice")
            elif first is not None:
                yield Problem(name, "differs from another by case alone", found=first)
            files[key] = name
    for key in files.keys() & folders.keys():
        yield Problem(files[key], "is both a file and a directory")


def _fold(name: str) -> str:
    return name.lower() if name.isascii() else unicodedata.normalize("NFC", name).casefold()


def _is_possible(info: zipfile.ZipInfo) -> bool:
    """Whether data of the packed size can unpack to the size that the directory promises."""
    if info.compress_type == zipfile.ZIP_STORED:
        return info.file_size == info.compress_size
    return info.file_size <= _MOST_RATIO * info.compress_size


def _is_executable(info: zipfile.ZipInfo) -> bool:
    mode = info.external_attr >> 16
    # As pip does: only where the member says that it is a regular file at all.
    return stat.S_ISREG(mode) and bool(mode & 0o111)


def _headers(raw: bytes) -> dict[str, str]:
    from email.parser import HeaderParser  # slow to import

    message = HeaderParser().parsestr(raw.decode("utf-8", "replace"))
    return {key: str(value) for key, value in reversed(message.items())}
