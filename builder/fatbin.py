"""The container in which nvcc stores device code: section ``.nv_fatbin``, or a ``.fatbin`` file.

NVIDIA does not publish the format. What this parser relies on was read from files of nvcc 12.4 to
13.0 and agrees with ``cuobjdump`` on them. All integers are little endian::

    container   region*, one for each translation unit, zero bytes allowed in between
    region      u32 magic 0xBA55ED50, u16 version 1, u16 header size (16), u64 size of the entries
                entry*, filling the size exactly
    entry        0  u16 kind                1 PTX, 2 cubin (ELF), 8 LTO-IR, 16 Mercury cubin
                 2  u16 version             0x0101
                 4  u32 header size         64; more where options follow (80, 96, 112, 120)
                 8  u64 payload size        stored bytes, padding to a multiple of 8 included
                16  u32 compressed size     stored bytes without padding; 0 when not compressed
                20  u32 options offset      from the entry's start; 0 when there are none
                24  u16 minor, u16 major    version of the payload's own format (PTX ISA, cubin)
                28  u32 architecture        75 stands for sm_75 or compute_75
                32  u32 name offset         from the entry's start
                36  u32 name length
                40  u64 flags               see `Flags`
                48  u64 (LTO-IR: a hash)
                56  u64 size when unpacked  0 when not compressed
                payload, at the entry's start + header size

Where the parts lie: linked code refers to each region by address (``.nvFatBinSegment`` holds one
wrapper a region: u32 magic 0x466243B1, u32 version, address of the region, address or null), and
regions begin at multiples of 8 bytes. Within a region nothing refers to an entry but its place:
the driver walks from header to header and takes the best that runs (`builder.fatbin_choice`). So
entries may be taken out and the rest moved up, while a region must stay where it is.

Every size and offset is checked before it is used, so hostile bytes end in a `FatbinError` that
names the place, never in an endless loop, a huge allocation or another exception.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from mmap import mmap

from kvreg.errors import VerificationError

Buffer = bytes | bytearray | memoryview | mmap

MAGIC = 0xBA55ED50
MAGIC_BYTES = struct.pack("<I", MAGIC)
SECTIONS = (".nv_fatbin", "__nv_relfatbin")
"""ELF sections that hold containers: linked device code, and relocatable device code."""

_REGION = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_ZERO_RUN = 4096


class FatbinError(VerificationError):
    """The bytes are not a well-formed container of device code."""


class Kind(IntEnum):
    """What an entry's payload is."""

    PTX = 1
    CUBIN = 2
    LTO_IR = 8
    MERCURY = 16


class Flags(IntFlag):
    """The bits of an entry's flags that matter here; others are kept as they are."""

    ADDRESS_64 = 0x1
    LINUX = 0x10
    LZ4 = 0x2000
    ZSTD = 0x8000
    OBFUSCATED = 0x10000
    """LTO-IR is not stored in the clear, and so cannot be unpacked either."""
    ARCHITECTURE_SPECIFIC = 0x100000
    """Built for ``sm_90a`` rather than ``sm_90``: runs on that architecture alone."""
    FAMILY_SPECIFIC = 0x200000
    """Built for ``sm_100f`` rather than ``sm_100``: runs on that family alone."""


@dataclass(frozen=True)
class Entry:
    """One piece of device code. Offsets and sizes are bytes; offsets count from the buffer's start.

    `payload_size` includes padding, `stored_size` does not where the format tells
    (compressed payloads); `unpacked_size` is that of the code itself.
    """

    kind: int
    offset: int
    header_size: int
    payload_size: int
    compressed_size: int
    unpacked_size: int
    code_version: tuple[int, int]
    sm: int
    flags: int

    @property
    def payload_offset(self) -> int:
        """Where the stored payload begins."""
        return self.offset + self.header_size

    @property
    def end(self) -> int:
        """Where the next entry begins."""
        return self.payload_offset + self.payload_size

    @property
    def compression(self) -> str | None:
        """``lz4``, ``zstd``, or None for a payload stored as it is."""
        if self.flags & Flags.LZ4:
            return "lz4"
        return "zstd" if self.flags & Flags.ZSTD else None

    @property
    def stored_size(self) -> int:
        """Stored bytes without the padding that compression needs."""
        return self.compressed_size if self.compression else self.payload_size

    @property
    def is_sass(self) -> bool:
        """Whether this is machine code for one architecture."""
        return self.kind in (Kind.CUBIN, Kind.MERCURY)

    @property
    def suffix(self) -> str:
        """``a`` (this architecture alone), ``f`` (its family alone), or nothing."""
        if self.flags & Flags.ARCHITECTURE_SPECIFIC:
            return "a"
        return "f" if self.flags & Flags.FAMILY_SPECIFIC else ""

    @property
    def architecture(self) -> str:
        """``sm_75`` for machine code, ``compute_75`` for PTX and other code that is compiled later.

        An entry of an unknown kind is named by its number.
        """
        if self.is_sass:
            return f"sm_{self.sm}{self.suffix}"
        if self.kind == Kind.PTX:
            return f"compute_{self.sm}{self.suffix}"
        if self.kind == Kind.LTO_IR:
            return f"lto_{self.sm}{self.suffix}"
        return f"kind{self.kind}_{self.sm}{self.suffix}"


@dataclass(frozen=True)
class Region:
    """The entries of one translation unit; `size` in bytes, header included."""

    offset: int
    header_size: int
    size: int
    entries: tuple[Entry, ...]

    @property
    def end(self) -> int:
        """Where the region's last entry ends."""
        return self.offset + self.size


def region_bytes(data: Buffer, region: Region, entries: Iterable[Entry]) -> bytes:
    """The region with these of its entries alone: as it would be read back, at its old place.

    >>> parse_fatbin(region_bytes(b"", Region(0, 16, 16, ()), ()))[0].size
    16
    """
    head = bytes(data[region.offset : region.offset + region.header_size]) or bytes(_REGION.size)
    parts = [bytes(data[entry.offset : entry.end]) for entry in entries]
    return (
        _REGION.pack(MAGIC, 1, region.header_size, sum(map(len, parts)))
        + head[_REGION.size :]
        + b"".join(parts)
    )


def parse_fatbin(data: Buffer, start: int = 0, end: int | None = None) -> tuple[Region, ...]:
    """All regions between two offsets of a buffer, which may be a memory map.

    Nothing of the payloads is read. Raises FatbinError for what is not a container.

    >>> parse_fatbin(bytes.fromhex("50ed55ba 0100 1000 0000000000000000"))
    (Region(offset=0, header_size=16, size=16, entries=()),)
    """
    return tuple(iter_regions(data, start, end))


def iter_regions(data: Buffer, start: int = 0, end: int | None = None) -> Iterator[Region]:
    """The regions one after the other; raises FatbinError at the first that is malformed."""
    end = len(data) if end is None else end
    if not 0 <= start <= end <= len(data):
        raise FatbinError(
            "the device code lies outside its file",
            expected=f"offsets within {len(data)} bytes",
            found=f"{start} to {end}",
            remedy="the file is truncated or damaged; build or fetch it again",
        )
    offset = _skip_zeros(data, start, end)
    while offset < end:
        region = _region(data, offset, end)
        yield region
        offset = _skip_zeros(data, region.end, end)


def iter_entries(regions: tuple[Region, ...]) -> Iterator[Entry]:
    """The entries of several regions, in file order."""
    for region in regions:
        yield from region.entries


def _skip_zeros(data: Buffer, offset: int, end: int) -> int:
    while offset < end and data[offset] == 0:
        run = bytes(data[offset : min(end, offset + _ZERO_RUN)])
        offset += len(run) - len(run.lstrip(b"\0"))
    return offset


def _region(data: Buffer, offset: int, end: int) -> Region:
    if end - offset < _REGION.size:
        raise _malformed(offset, f"{_REGION.size} bytes of region header", f"{end - offset}")
    magic, version, header_size, size = _REGION.unpack_from(data, offset)
    if magic != MAGIC:
        raise _malformed(offset, f"the magic number {MAGIC:#x}", f"{magic:#x}")
    if version != 1:
        raise _malformed(offset, "region version 1", str(version))
    if header_size < _REGION.size or header_size + size > end - offset:
        room = f"a region of at most {end - offset} bytes"
        raise _malformed(offset, room, f"header {header_size}, entries {size}")
    first, last = offset + header_size, offset + header_size + size
    return Region(offset, header_size, last - offset, tuple(_entries(data, first, last)))


def _entries(data: Buffer, offset: int, end: int) -> Iterator[Entry]:
    while offset < end:
        if end - offset < _ENTRY.size:
            raise _malformed(offset, f"{_ENTRY.size} bytes of entry header", f"{end - offset}")
        entry = _entry(data, offset)
        if entry.header_size < _ENTRY.size:
            raise _malformed(
                offset, f"an entry header of {_ENTRY.size} bytes or more", f"{entry.header_size}"
            )
        if entry.end > end:
            raise _malformed(
                offset,
                f"an entry of at most {end - offset} bytes",
                f"header {entry.header_size}, payload {entry.payload_size}",
            )
        if entry.flags & Flags.LZ4 and entry.flags & Flags.ZSTD:
            raise _malformed(offset, "one kind of compression", f"flags {entry.flags:#x}")
        if entry.compression and not 0 < entry.compressed_size <= entry.payload_size:
            raise _malformed(
                offset,
                f"a compressed size between 1 and {entry.payload_size}",
                f"{entry.compressed_size}",
            )
        yield entry
        offset = entry.end


def _entry(data: Buffer, offset: int) -> Entry:
    fields = _ENTRY.unpack_from(data, offset)
    kind, _, header_size, payload_size, compressed_size, _, minor, major, sm = fields[:9]
    *_, flags, _, unpacked_size = fields[9:]
    compressed = flags & (Flags.LZ4 | Flags.ZSTD)
    return Entry(
        kind=kind,
        offset=offset,
        header_size=header_size,
        payload_size=payload_size,
        compressed_size=compressed_size,
        unpacked_size=unpacked_size if compressed else payload_size,
        code_version=(major, minor),
        sm=sm,
        flags=flags,
    )


def _malformed(offset: int, expected: str, found: str) -> FatbinError:
    return FatbinError(
        f"the device code is malformed at byte {offset}",
        expected=expected,
        found=found,
        remedy="the file is truncated or damaged; build or fetch it again",
    )
