"""Device code entry by entry: which architecture, which kernels, which section of the cubin."""

from __future__ import annotations

import hashlib
import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from builder.comparison.content import (
    compare_bytes,
    compare_strings,
    compare_text,
    how_bytes_differ,
)
from builder.comparison.model import Part
from builder.comparison.reasons import explain, without_ids
from builder.fatbin import Entry, FatbinError, Kind, parse_fatbin
from builder.fatbin_payload import unpack

_PTX_ENTRY = re.compile(rb"\.entry\s+([\w$]+)")
_NAMED, _WIDTH = 3, 60
_SECTION_ROW, _SECTIONS_AT, _SECTION_COUNTS = 64, 40, 58
_NOBITS = 8


@dataclass(frozen=True)
class _Piece:
    """An entry with its place (region and number in it) and its payload, unpacked."""

    region: int
    number: int
    entry: Entry
    payload: bytes | None
    stored: bytes

    @property
    def content(self) -> bytes:
        return self.stored if self.payload is None else self.payload

    @property
    def identity(self) -> tuple[str, str]:
        return self.entry.architecture, hashlib.sha256(self.content).hexdigest()

    def name(self) -> str:
        kernels = _kernels(self.entry, self.content)
        more = f" and {len(kernels) - _NAMED} more" if len(kernels) > _NAMED else ""
        of = f" ({', '.join(k[:_WIDTH] for k in kernels[:_NAMED])}{more})" if kernels else ""
        return f"region {self.region} entry {self.number}, {self.entry.architecture}{of}"


def compare_device_code(a: bytes, b: bytes, where: str) -> tuple[Part, ...]:
    """Two containers' entries; empty where all are equal. Raises FatbinError for what is none."""
    ours, theirs = list(_pieces(a)), list(_pieces(b))
    if [(p.region, p.number) for p in ours] == [(p.region, p.number) for p in theirs]:
        changed = [pair for pair in zip(ours, theirs, strict=True) if _differ(*pair)]
        if len(changed) > 1 and _same(ours, theirs):
            return (Part(where, f"{len(changed)} entries lie elsewhere", ("ordering",)),)
        return tuple(part for one, other in changed for part in _entry(one, other, where))
    if _same(ours, theirs):
        return (Part(where, "the same entries in other regions", ("ordering",)),)
    return (
        *_surplus(ours, theirs, where, "a"),
        *_surplus(theirs, ours, where, "b"),
    )


def _pieces(data: bytes) -> Iterator[_Piece]:
    for number, region in enumerate(parse_fatbin(data)):
        for place, entry in enumerate(region.entries):
            stored = data[entry.offset : entry.end]
            try:
                payload = unpack(data, entry)
            except FatbinError:
                payload = None
            yield _Piece(number, place, entry, payload, stored)


def _same(ours: Sequence[_Piece], theirs: Sequence[_Piece]) -> bool:
    return Counter(p.identity for p in ours) == Counter(p.identity for p in theirs)


def _differ(one: _Piece, other: _Piece) -> bool:
    return one.stored != other.stored


def _surplus(
    ours: Sequence[_Piece], theirs: Sequence[_Piece], where: str, side: str
) -> Iterator[Part]:
    there = Counter(p.identity for p in theirs)
    for piece in ours:
        if there[piece.identity]:
            there[piece.identity] -= 1
        else:
            yield Part(f"{where} {piece.name()}", f"only in {side}")


def _entry(one: _Piece, other: _Piece, where: str) -> Iterator[Part]:
    place = f"{where} {one.name()}"
    if one.entry.architecture != other.entry.architecture:
        yield Part(place, f"is {other.entry.architecture} in b")
    elif one.payload is None or other.payload is None:
        yield Part(place, f"{how_bytes_differ(one.stored, other.stored)}; it cannot be unpacked")
    elif one.payload == other.payload:
        packed = one.entry.compression or other.entry.compression
        bodies = (p.stored[p.entry.header_size :] for p in (one, other))
        if packed and len(set(bodies)) == 2:
            yield Part(place, "the code is packed in another way", ("packing",))
        else:
            yield Part(place, f"around the code, {how_bytes_differ(one.stored, other.stored)}")
    elif one.entry.kind == Kind.PTX:
        part = compare_text(one.payload.rstrip(b"\0"), other.payload.rstrip(b"\0"))
        yield Part(f"{place} {part.where}", part.what, part.reasons, part.lines)
    else:
        yield from _cubin(one.payload, other.payload, place)


def _cubin(a: bytes, b: bytes, place: str) -> Iterator[Part]:
    ours, theirs = dict(_cubin_sections(a)), dict(_cubin_sections(b))
    found = False
    for name in [*ours, *(n for n in theirs if n not in ours)]:
        one, other = ours.get(name), theirs.get(name)
        if one == other:
            continue
        found = True
        if one is None or other is None:
            yield Part(f"{place} {name}", f"only in {'a' if other is None else 'b'}")
        elif name.startswith(".text."):
            yield compare_bytes(one, other, f"{place} {name}")
        else:
            yield compare_strings(one, other, f"{place} {name}")
    if not found:
        yield Part(place, how_bytes_differ(a, b), explain(a, b))


def _cubin_sections(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents of a cubin's sections; nothing of what is no ELF file of 64 bits.

    A cubin may lack the table of segments, so `elf_layout`, which lays files out anew, refuses it.
    """
    if cubin[:6] != b"\x7fELF\x02\x01" or len(cubin) < _SECTION_ROW:
        return
    (at,) = struct.unpack_from("<Q", cubin, _SECTIONS_AT)
    row, count, names = struct.unpack_from("<HHH", cubin, _SECTION_COUNTS)
    if row != _SECTION_ROW or names >= count or at + count * row > len(cubin):
        return
    rows = [struct.unpack_from("<IIQQQQ", cubin, at + i * row) for i in range(count)]
    table = cubin[rows[names][4] : rows[names][4] + rows[names][5]]
    seen: Counter[str] = Counter()
    for name, kind, _, _, offset, size in rows:
        # Sections are named after kernels, and these after nvcc's module id.
        label = without_ids(table[name:].split(b"\0", 1)[0].decode("utf-8", "replace"))
        label = label or "(unnamed)"
        seen[label] += 1
        label = label if seen[label] == 1 else f"{label} ({seen[label]})"
        yield label, b"" if kind == _NOBITS else cubin[offset : offset + size]


def _kernels(entry: Entry, content: bytes) -> list[str]:
    if entry.kind == Kind.PTX:
        return [without_ids(n.decode("ascii", "replace")) for n in _PTX_ENTRY.findall(content)]
    return [n.removeprefix(".text.") for n, _ in _cubin_sections(content) if n.startswith(".text.")]
