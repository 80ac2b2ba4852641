"""The header before each member's bytes, which must say what the archive's directory says.

Tools differ in which of the two they believe, so a wheel in which they disagree is one thing to
one tool and another to the next.
"""

import struct
import zipfile

from kvreg.errors import Problem

SIZE = 30
"""Bytes of a header without the name and the extra field that follow it."""

_FORMAT = struct.Struct("<4s5HL2L2H")
_SIGNATURE = b"PK\x03\x04"
_ENCRYPTED, _SIZES_FOLLOW, _UTF8 = 0x1, 0x8, 0x800
_IN_EXTRA = 0xFFFFFFFF
_ZIP64 = 1


def header_size(raw: bytes) -> int:
    """Bytes of the whole header that begins `raw`, from its first `SIZE` bytes; 0 if it is none."""
    if len(raw) < SIZE or not raw.startswith(_SIGNATURE):
        return 0
    name, extra = struct.unpack_from("<2H", raw, SIZE - 4)
    return SIZE + int(name) + int(extra)


def header_problem(raw: bytes, info: zipfile.ZipInfo) -> Problem | None:
    """In what a whole header disagrees with the directory's entry."""
    _, _, flags, method, _, _, crc, packed, size, name_size, _ = _FORMAT.unpack_from(raw)
    name = raw[SIZE : SIZE + name_size].decode("utf-8" if flags & _UTF8 else "cp437", "replace")
    if size == _IN_EXTRA or packed == _IN_EXTRA:
        size, packed = _zip64_sizes(raw[SIZE + name_size :], size, packed)
    found = (name, method, flags & _ENCRYPTED, crc, packed, size)
    expected = (
        info.orig_filename,
        info.compress_type,
        info.flag_bits & _ENCRYPTED,
        info.CRC,
        info.compress_size,
        info.file_size,
    )
    if flags & _SIZES_FOLLOW and found[3:] == (0, 0, 0):
        found = (*found[:3], *expected[3:])
    if found == expected:
        return None
    what = "has a local header that disagrees with the archive's directory"
    return Problem(repr(info.filename)[1:-1], what, _text(expected), _text(found))


def _zip64_sizes(extra: bytes, size: int, packed: int) -> tuple[int, int]:
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<2H", extra)
        data = extra[4 : 4 + length]
        if kind == _ZIP64 and len(data) >= 16:
            size, packed = struct.unpack_from("<2Q", data)
            break
        extra = extra[4 + length :]
    return size, packed


def _text(values: tuple[object, ...]) -> str:
    name, method, encrypted, crc, packed, size = values
    return (
        f"{str(name)!r:.100}, method {method}{', encrypted' if encrypted else ''},"
        f" CRC {crc:08x}, {packed} bytes packed, {size} unpacked"
    )
