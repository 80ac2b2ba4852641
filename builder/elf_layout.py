"""The layout of a 64-bit ELF file: its header and the two tables that say where things lie.

Enough to lay a file out anew and to compare two layouts: fields as they are stored, in file order
(System V ABI, chapters 4 and 5).
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass, replace
from typing import Self

from builder.fatbin import Buffer
from kvreg.errors import VerificationError

PT_LOAD, PT_PHDR = 1, 6
SHT_NOBITS = 8
SHF_ALLOC = 0x2

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
HEADER_SIZE, SEGMENT_SIZE, SECTION_SIZE = _HEADER.size, _SEGMENT.size, _SECTION.size


class LayoutError(VerificationError):
    """The file's tables do not describe a file that can be laid out anew."""


@dataclass(frozen=True)
class Header:
    """The ELF header; `segments_at` and `sections_at` are offsets of the two tables."""

    ident: bytes
    type: int
    machine: int
    version: int
    entry: int
    segments_at: int
    sections_at: int
    flags: int
    size: int
    segment_size: int
    segments: int
    section_size: int
    sections: int
    names: int

    def pack(self) -> bytes:
        return _HEADER.pack(*astuple(self))


@dataclass(frozen=True)
class Segment:
    """A row of the program header table: what the loader maps where."""

    type: int
    flags: int
    offset: int
    address: int
    physical: int
    size: int
    memory_size: int
    align: int

    @property
    def end(self) -> int:
        """The file offset behind it."""
        return self.offset + self.size

    def pack(self) -> bytes:
        return _SEGMENT.pack(*astuple(self))


@dataclass(frozen=True)
class Section:
    """A row of the section header table; `label` is its name."""

    label: str
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int

    @property
    def stored(self) -> int:
        """The bytes that it has in the file."""
        return 0 if self.type == SHT_NOBITS else self.size

    def pack(self) -> bytes:
        return _SECTION.pack(*astuple(self)[1:])


@dataclass(frozen=True)
class Layout:
    """Header and tables of one file; `size` is the file's."""

    header: Header
    segments: tuple[Segment, ...]
    sections: tuple[Section, ...]
    size: int

    @classmethod
    def read(cls, data: Buffer) -> Self:
        """Raises LayoutError for what is no 64-bit little-endian ELF file with both tables."""
        size = len(data)
        if size < HEADER_SIZE or bytes(data[:6]) != b"\x7fELF\x02\x01":
            raise LayoutError("this is not a 64-bit little-endian ELF file")
        header = Header(*_HEADER.unpack_from(data, 0))
        for what, at, count, row, wanted in (
            ("segments", header.segments_at, header.segments, header.segment_size, SEGMENT_SIZE),
            ("sections", header.sections_at, header.sections, header.section_size, SECTION_SIZE),
        ):
            if not count or row != wanted or at + count * row > size:
                raise LayoutError(
                    f"the ELF file's table of {what} is not usable",
                    expected=f"rows of {wanted} bytes within {size}",
                    found=f"{count} of {row} bytes at {at}",
                )
        segments = tuple(
            Segment(*_SEGMENT.unpack_from(data, header.segments_at + i * SEGMENT_SIZE))
            for i in range(header.segments)
        )
        rows = [
            _SECTION.unpack_from(data, header.sections_at + i * SECTION_SIZE)
            for i in range(header.sections)
        ]
        sections = tuple(Section(_label(data, rows, header.names, row[0]), *row) for row in rows)
        for part in segments:
            if part.end > size:
                raise LayoutError("a segment lies outside its file", found=str(part))
        for section in sections:
            if section.offset + section.stored > size:
                raise LayoutError(f"section {section.label} lies outside its file")
        return cls(header, segments, sections, size)

    def loaded(self, address: int, size: int) -> tuple[int, int] | None:
        """The file offsets of loaded bytes, None where no one segment stores all of them."""
        for segment in self.segments:
            first = address - segment.address
            if segment.type == PT_LOAD and first >= 0 and first + size <= segment.size:
                return segment.offset + first, segment.offset + first + size
        return None


def _label(data: Buffer, rows: list[tuple[int, ...]], names: int, offset: int) -> str:
    if names >= len(rows):
        return ""
    start, size = rows[names][4], rows[names][5]
    if offset >= size or start + size > len(data):
        raise LayoutError("a section's name lies outside the table of names", found=str(offset))
    return bytes(data[start + offset : start + size]).split(b"\0", 1)[0].decode("utf-8", "replace")


def moved(section: Section, offset: int) -> Section:
    """The same section at another place of the file."""
    return replace(section, offset=offset)
