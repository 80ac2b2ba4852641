"""The loader's cache, ``/etc/ld.so.cache``: which file a library's name stands for.

Format: glibc's ``dl-cache.h`` (``glibc-ld.so.cache1.1``), possibly behind one of the old format.
"""

import struct
from collections.abc import Mapping

_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sII20x")
_ENTRY = struct.Struct("<iIIIQ")
_FLAGS = 0xFFFF  # which ABI, and that it is an ELF file of glibc
_X86_64, _AARCH64 = 0x0303, 0x0A03


def parse_cache(raw: bytes) -> Mapping[str, tuple[str, ...]]:
    """Paths by library name, in the cache's order; empty for what is no cache of glibc's.

    Entries for special hardware (``glibc-hwcaps``) come last: whether the loader takes one
    depends on the processor.
    """
    start = raw.find(_MAGIC)
    if start < 0 or len(raw) < start + _HEADER.size:
        return {}
    _, count, _ = _HEADER.unpack_from(raw, start)
    plain: dict[str, list[str]] = {}
    special: dict[str, list[str]] = {}
    for index in range(count):
        offset = start + _HEADER.size + index * _ENTRY.size
        if offset + _ENTRY.size > len(raw):
            break
        flags, key, value, _, hardware = _ENTRY.unpack_from(raw, offset)
        if flags & _FLAGS not in (_X86_64, _AARCH64):
            continue
        entries = special if hardware else plain
        entries.setdefault(_text(raw, start + key), []).append(_text(raw, start + value))
    return {name: (*plain.get(name, ()), *special.get(name, ())) for name in {**plain, **special}}


def _text(raw: bytes, offset: int) -> str:
    end = raw.find(b"\0", offset)
    return raw[offset:end].decode("utf-8", "replace") if end > offset else ""
