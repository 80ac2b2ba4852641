"""What an entry of a fatbin holds: its unpacked bytes, and the architecture a cubin is for."""

from __future__ import annotations

import struct

import lz4.block
import zstandard

from builder.fatbin import Buffer, Entry, FatbinError, Flags

MAX_UNPACKED = 512 << 20
"""Bytes that one payload may unpack to. The largest seen in practice is below 40 MB."""

_LZ4_RATIO = 255
"""No LZ4 block unpacks to more than this many times its size."""

_EM_CUDA = 190
_ELF_HEAD = 52
_OSABI_CUDA = 0x33
_OSABI_CUDA_V2 = 0x41
_ACCELERATED, _ACCELERATED_V2 = 0x800, 0x8


def unpack(data: Buffer, entry: Entry, limit: int = MAX_UNPACKED) -> bytes:
    """The payload of an entry, decompressed; at most `limit` bytes of it are ever held.

    A payload that is not compressed comes with its padding. Raises FatbinError when it is
    larger than `limit`, is obfuscated (LTO-IR), or does not decompress to the size that its
    header tells.
    """
    start = entry.payload_offset
    if entry.flags & Flags.OBFUSCATED:
        raise _damaged(entry, "a payload in the clear", f"flags {entry.flags:#x}")
    if entry.unpacked_size > limit:
        raise _damaged(entry, f"at most {limit} bytes unpacked", f"{entry.unpacked_size}")
    stored = bytes(data[start : start + entry.stored_size])
    if entry.compression is None:
        return stored
    try:
        if entry.compression == "lz4":
            if entry.unpacked_size > _LZ4_RATIO * len(stored):
                most = f"at most {_LZ4_RATIO * len(stored)} bytes from {len(stored)} of LZ4"
                raise _damaged(entry, most, f"{entry.unpacked_size}")
            payload = lz4.block.decompress(stored, uncompressed_size=entry.unpacked_size)
        else:
            payload = _unzstd(stored, entry.unpacked_size + 1)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError) as error:
        whole = f"{entry.compression} data of {entry.unpacked_size} bytes"
        raise _damaged(entry, whole, str(error)) from error
    if len(payload) != entry.unpacked_size:
        raise _damaged(entry, f"{entry.unpacked_size} bytes unpacked", f"{len(payload)}")
    return payload


def head(data: Buffer, entry: Entry, size: int = 64) -> bytes:
    """The first bytes of a payload, unpacked; cheap unless it is LZ4."""
    if entry.compression is None:
        start = entry.payload_offset
        return bytes(data[start : start + min(size, entry.payload_size)])
    if entry.compression == "zstd":
        start = entry.payload_offset
        try:
            return _unzstd(bytes(data[start : start + entry.stored_size]), size)
        except zstandard.ZstdError as error:
            raise _damaged(entry, "zstd data", str(error)) from error
    return unpack(data, entry)[:size]


def cubin_architecture(cubin: bytes) -> tuple[int, bool] | None:
    """The number of the SM that a cubin is for, and whether its header marks it ``a``.

    Only the first 52 bytes are looked at. None for what is not a CUDA ELF file. The flags
    moved when CUDA 12.8 introduced a second layout for SM 100 and up (13.0: for all).

    >>> cubin_architecture(b"not a cubin") is None
    True
    """
    if len(cubin) < _ELF_HEAD or cubin[:4] != b"\x7fELF" or cubin[4:6] != b"\x02\x01":
        return None
    if struct.unpack_from("<H", cubin, 18)[0] != _EM_CUDA:
        return None
    (flags,) = struct.unpack_from("<I", cubin, 48)
    if cubin[7] == _OSABI_CUDA:
        return flags & 0xFF, bool(flags & _ACCELERATED)
    if cubin[7] == _OSABI_CUDA_V2:
        return flags >> 8 & 0xFF, bool(flags & _ACCELERATED_V2)
    return None


def check_cubin(data: Buffer, entry: Entry) -> str | None:
    """Why a machine-code entry is not for the architecture that its header names, or None.

    The driver picks an entry by its header; a cubin for another SM in it would fail at load.
    """
    found = cubin_architecture(head(data, entry))
    if found is None:
        return "its payload is not a CUDA ELF file"
    sm, accelerated = found
    if sm != entry.sm or (accelerated and not entry.suffix):
        return f"its payload is a cubin for sm_{sm}{'a' if accelerated else ''}"
    return None


def _unzstd(stored: bytes, size: int) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(stored) as reader:
        chunks, left = [], size
        while left and (chunk := reader.read(min(left, 1 << 20))):
            chunks.append(chunk)
            left -= len(chunk)
    return b"".join(chunks)


def _damaged(entry: Entry, expected: str, found: str) -> FatbinError:
    return FatbinError(
        f"the {entry.architecture} code at byte {entry.offset} cannot be unpacked",
        expected=expected,
        found=found,
        remedy="the file is damaged; build or fetch it again",
    )
