"""Two wheels: the whole hash first, then the zip file around the members, then every member."""

from __future__ import annotations

import hashlib
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from builder.cache import file_sha256
from builder.comparison.content import (
    compare_bytecode,
    compare_bytes,
    compare_text,
    how_bytes_differ,
    is_text,
)
from builder.comparison.elf import compare_elf, is_elf
from builder.comparison.model import Comparison, Member, Part, Side
from kvreg.errors import NotFoundError
from kvreg.wheel.record import read_record

Progress = Callable[[int], object]

LARGEST = 2 << 30
"""Bytes of a member that is looked into; of a larger one only the hashes are compared."""

_LOCAL_HEADER = 30
_SERIAL = re.compile(rb"urn:uuid:[0-9a-f-]{36}")
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
_ZIP_FACTS: tuple[tuple[str, tuple[str, ...], Callable[[zipfile.ZipInfo], object]], ...] = (
    ("time stamps", ("time-stamp",), lambda i: i.date_time),
    ("permissions", ("file-mode",), lambda i: i.external_attr >> 16),
    ("compression", ("packing",), lambda i: i.compress_type),
    ("flags", (), lambda i: (i.flag_bits, i.create_system, i.create_version, i.extract_version)),
    ("attributes", (), lambda i: (i.external_attr & 0xFFFF, i.internal_attr)),
    ("extra fields", (), lambda i: (i.extra, i.comment)),
)


def compare_wheels(a: Path, b: Path, progress: Progress | None = None) -> Comparison:
    """Compare two wheel files. Raises NotFoundError; what is no zip file is ``not-comparable``.

    progress: told the unpacked bytes that were read, of both.
    """
    for path in (a, b):
        if not path.is_file():
            raise NotFoundError(f"there is no file {path}")
    one, other = (Side(file_sha256(path), path.stat().st_size) for path in (a, b))
    if one == other:
        return Comparison("identical", one, other)
    try:
        with zipfile.ZipFile(a) as first, zipfile.ZipFile(b) as second:
            members, same = _members(first, second, progress)
            archive = _archive(first, second, {m.path for m in members})
            if not members and not archive:
                archive = (_stored(a, b, first),)
    except _UNREADABLE as error:
        return Comparison("not-comparable", one, other, why=f"no whole zip file: {error}")
    return Comparison("different", one, other, archive, members, same)


def _by_name(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Members by name; the second of a name, which a wheel must not have, is ``<name> (2)``."""
    seen: Counter[str] = Counter()
    found = {}
    for info in archive.infolist():
        seen[info.filename] += 1
        count = seen[info.filename]
        found[info.filename if count == 1 else f"{info.filename} ({count})"] = info
    return found


def _members(
    first: zipfile.ZipFile, second: zipfile.ZipFile, progress: Progress | None
) -> tuple[tuple[Member, ...], int]:
    ours, theirs = _by_name(first), _by_name(second)
    hashes_a = {name: _hash(first, info, progress) for name, info in ours.items()}
    hashes_b = {name: _hash(second, info, progress) for name, info in theirs.items()}
    found = []
    for path in [*ours, *(name for name in theirs if name not in ours)]:
        one, other = hashes_a.get(path), hashes_b.get(path)
        if one == other:
            continue
        if one is None or other is None:
            kind = "member"
            change = "only-in-a" if other is None else "only-in-b"
            found.append(Member(path, kind, change, one, other))  # type: ignore[arg-type]
            continue
        if max(one.size, other.size) > LARGEST:
            part = Part("content", f"too large to look into: {one.size:,} bytes")
            found.append(Member(path, "bytes", "changed", one, other, (part,)))
            continue
        kind, parts = _look(
            path, first.read(ours[path]), second.read(theirs[path]), hashes_a, hashes_b
        )
        found.append(Member(path, kind, "changed", one, other, parts))
    return tuple(found), sum(hashes_a[p] == hashes_b.get(p) for p in hashes_a)


def _hash(archive: zipfile.ZipFile, info: zipfile.ZipInfo, progress: Progress | None) -> Side:
    digest, size = hashlib.sha256(), 0
    with archive.open(info) as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
            size += len(chunk)
            if progress is not None:
                progress(len(chunk))
    return Side(digest.hexdigest(), size)


def _look(
    path: str, a: bytes, b: bytes, hashes_a: Mapping[str, Side], hashes_b: Mapping[str, Side]
) -> tuple[str, tuple[Part, ...]]:
    """What kind of file it is, and where the two differ."""
    if is_elf(a) and is_elf(b):
        return "elf", compare_elf(a, b)
    if path.endswith(".dist-info/RECORD"):
        return "record", tuple(_record(path, a, b, hashes_a, hashes_b))
    if path.endswith(".pyc"):
        return "bytecode", (compare_bytecode(a, b),)
    if is_text(path, a, b):
        part = compare_text(a, b)
        if _repeats(a, b, hashes_a, hashes_b):
            part = replace(part, reasons=("follows",))
        return "text", (part,)
    return "bytes", (compare_bytes(a, b),)


def _repeats(
    a: bytes, b: bytes, hashes_a: Mapping[str, Side], hashes_b: Mapping[str, Side]
) -> bool:
    """Whether two texts differ in hashes of other members alone, as bills of materials do, whose
    serial number is made of them."""
    for path, one in hashes_a.items():
        other = hashes_b.get(path)
        if other is not None and one != other:
            a = a.replace(one.sha256.encode(), path.encode())
            b = b.replace(other.sha256.encode(), path.encode())
    return _SERIAL.sub(b"", a) == _SERIAL.sub(b"", b)


def _record(
    path: str, a: bytes, b: bytes, hashes_a: Mapping[str, Side], hashes_b: Mapping[str, Side]
) -> Iterator[Part]:
    """RECORD repeats the hashes of the others: what differs for that alone follows from them."""
    rows_a, faults_a = read_record(a, path)
    rows_b, faults_b = read_record(b, path)
    if faults_a or faults_b:
        yield Part("rows", "; ".join(str(p) for p in (*faults_a, *faults_b))[:300])
        return
    stale = False
    for side, rows, hashes in (("a", rows_a, hashes_a), ("b", rows_b, hashes_b)):
        for name, row in rows.items():
            held = hashes.get(name)
            if row.algorithm != "sha256" or row.digest is None or held is None:
                continue
            if row.digest.hex() != held.sha256:
                stale = True
                lines = (f"RECORD sha256:{row.digest.hex()}", f"member sha256:{held.sha256}")
                yield Part(f"row {name}", f"is not that of the member in {side}", lines=lines)
    changed = [n for n in {**rows_a, **rows_b} if rows_a.get(n) != rows_b.get(n)]
    foreign = [n for n in changed if hashes_a.get(n) == hashes_b.get(n)]
    for name in [] if stale else foreign:
        yield Part(f"row {name}", "differs although the member does not")
    if own := [n for n in changed if n not in foreign]:
        yield Part("rows", f"{len(own)} of members that differ", ("follows",), tuple(own[:6]))
    if not changed:
        yield Part("rows", "the same rows", ("ordering",))


def _archive(
    first: zipfile.ZipFile, second: zipfile.ZipFile, differing: set[str]
) -> tuple[Part, ...]:
    """What differs in the zip file itself, for members that both have."""
    ours, theirs = _by_name(first), _by_name(second)
    both = [name for name in ours if name in theirs]
    parts = []
    if both != [name for name in theirs if name in ours]:
        parts.append(Part("order of members", "the same members", ("ordering",)))
    elif sorted(both, key=lambda n: ours[n].header_offset) != sorted(
        both, key=lambda n: theirs[n].header_offset
    ):
        parts.append(Part("places of members", "stored in another order", ("ordering",)))
    packed = set()
    for what, reasons, fact in _ZIP_FACTS:
        names = [n for n in both if fact(ours[n]) != fact(theirs[n])]
        if what == "compression":
            packed = set(names)
        if names:
            pair = (_shown(fact(side[names[0]])) for side in (ours, theirs))
            example = f"{names[0]}: {', '.join(pair)}"
            parts.append(Part(what, f"differ in {len(names)} members", reasons, (example,)))
    repacked = [
        n
        for n in both
        if n not in differing
        and n not in packed
        and ours[n].compress_size != theirs[n].compress_size
    ]
    if repacked:
        what = f"{len(repacked)} members of the same content"
        parts.append(Part("compressed sizes", what, ("packing",), tuple(repacked[:4])))
    if first.comment != second.comment:
        parts.append(Part("comment", "differs", (), (repr(first.comment), repr(second.comment))))
    return tuple(parts)


def _stored(a: Path, b: Path, first: zipfile.ZipFile) -> Part:
    """Where two files differ whose members are the same, by content and by description."""
    what = how_bytes_differ(a.read_bytes(), b.read_bytes())
    offset = int(what.rpartition("0x")[2], 16)
    before = [i for i in first.infolist() if i.header_offset <= offset]
    if before and offset < first.start_dir:
        last = max(before, key=lambda info: info.header_offset)
        head = last.header_offset + _LOCAL_HEADER + len(last.orig_filename.encode())
        if head <= offset < head + last.compress_size:
            return Part(f"stored bytes of {last.filename}", what, ("packing",))
    return Part("file", f"{what}, outside of every member")


def _shown(value: object) -> str:
    if isinstance(value, tuple) and len(value) == 6:
        year, month, day, hour, minute, second = value
        return f"{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}"
    return oct(value) if isinstance(value, int) else repr(value)[:80]
