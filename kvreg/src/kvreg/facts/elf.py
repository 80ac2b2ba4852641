"""What the dynamic loader needs to know of one ELF file: names, search paths, symbols, versions.

Read from the dynamic segment, as the loader does, so that stripped files can be read too. Symbols
are looked up through the file's own hash table, so that a library of a gigabyte costs no more than
a small one. Nothing in the file is believed before it was found to lie within the file.

Format: System V ABI, and the GNU extensions of the Linux Standard Base (``DT_GNU_HASH``, symbol
versions).
"""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from kvreg.errors import VerificationError

MACHINES = {62: "x86_64", 183: "aarch64"}

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC = struct.Struct("<qQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_VERNEED = struct.Struct("<HHIII")
_VERNAUX = struct.Struct("<IHHII")
_VERDEF = struct.Struct("<HHHHIII")
_PAIR = struct.Struct("<II")
_WORD = struct.Struct("<Q")
_NUMBER = struct.Struct("<I")
_GNU_HASH = struct.Struct("<IIII")

_PT_LOAD, _PT_DYNAMIC = 1, 2
_SHT_DYNSYM = 11
_NEEDED, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 1, 4, 5, 6, 10, 14, 15, 29
_GNU_HASH_TAG, _VERDEF_TAG, _VERNEED_TAG = 0x6FFFFEF5, 0x6FFFFFFC, 0x6FFFFFFE
_GLOBAL, _WEAK = 1, 2
_VER_FLG_WEAK = 2
_MAX_NAME = 1 << 16
_MAX_ENTRIES = 1 << 16


class ElfError(VerificationError):
    """The file is not an ELF file that can be read."""


@dataclass(frozen=True)
class Undefined:
    """A symbol that another file must provide; a weak one may be absent."""

    name: str
    weak: bool


class Elf:
    """One 64-bit little-endian ELF file, mapped; use as a context manager or `close` it.

    Raises `ElfError` for what is no such file and for damaged ones, `OSError` if unreadable.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            try:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:
                raise ElfError(f"{path} is empty") from None
        try:
            self._read()
        except ElfError:
            self.close()
            raise

    def __enter__(self) -> "Elf":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._data.close()

    def _read(self) -> None:
        data = self._data
        if data[:6] != b"\x7fELF\x02\x01":
            raise ElfError(
                f"{self.path} is not a 64-bit little-endian ELF file", found=data[:6].hex()
            )
        fields = self._unpack(_HEADER, 0)
        self.machine = MACHINES.get(fields[2], f"machine {fields[2]}")
        self._sections = (fields[6], fields[12], fields[13])
        segments = [
            self._unpack(_SEGMENT, fields[5] + index * _SEGMENT.size) for index in range(fields[10])
        ]
        # (virtual address, file offset, size in the file)
        self._loads = [(s[3], s[2], s[5]) for s in segments if s[0] == _PT_LOAD]
        tags: dict[int, list[int]] = {}
        for segment in segments:
            if segment[0] == _PT_DYNAMIC:
                tags = self._tags(segment[2], segment[5])
        self._dynamic = tags
        self._strings = self._offset(tags[_STRTAB][0]) if _STRTAB in tags else 0
        self._strings_size = tags.get(_STRSZ, [0])[0]
        self.soname = self._texts(_SONAME)[0] if _SONAME in tags else None
        self.needed = self._texts(_NEEDED)
        self.rpath = self._paths(_RPATH)
        self.runpath = self._paths(_RUNPATH)

    def _tags(self, offset: int, size: int) -> dict[int, list[int]]:
        tags: dict[int, list[int]] = {}
        table = self._slice(offset, size // _DYNAMIC.size * _DYNAMIC.size)
        for tag, value in _DYNAMIC.iter_unpack(table):
            if tag == 0:
                break
            tags.setdefault(tag, []).append(value)
        return tags

    def undefined(self) -> tuple[Undefined, ...]:
        """The symbols that other files must provide, in the file's order."""
        if _SYMTAB not in self._dynamic:
            return ()
        start = self._offset(self._dynamic[_SYMTAB][0])
        table = self._slice(start, self._symbol_count(start) * _SYMBOL.size)
        found = []
        for name, info, _, section, _, _ in _SYMBOL.iter_unpack(table):
            if name and not section and info >> 4 in (_GLOBAL, _WEAK):
                found.append(Undefined(self._text(name), info >> 4 == _WEAK))
        return tuple(found)

    def defines(self, name: str) -> bool:
        """Whether the file exports `name`, in any version."""
        raw = name.encode()
        if _SYMTAB not in self._dynamic:
            return False
        if _GNU_HASH_TAG in self._dynamic:
            candidates = self._gnu_candidates(raw)
        elif _HASH in self._dynamic:
            candidates = self._sysv_candidates(raw)
        else:
            return False
        symbols = self._offset(self._dynamic[_SYMTAB][0])
        for index in candidates:
            record = self._unpack(_SYMBOL, symbols + index * _SYMBOL.size)
            if record[3] and self._is_text(record[0], raw):
                return True
        return False

    def version_definitions(self) -> frozenset[str]:
        """The symbol versions that the file provides, such as ``GLIBCXX_3.4.30``."""
        if _VERDEF_TAG not in self._dynamic:
            return frozenset()
        start = self._offset(self._dynamic[_VERDEF_TAG][0])
        found = set()
        for offset, record in self._chain(start, _VERDEF, 6):
            auxiliary = self._unpack(_PAIR, offset + record[5])
            found.add(self._text(auxiliary[0]))
        return frozenset(found)

    def version_needs(self) -> dict[str, tuple[str, ...]]:
        """The symbol versions that the file must have, by the name of the file that has them."""
        if _VERNEED_TAG not in self._dynamic:
            return {}
        start = self._offset(self._dynamic[_VERNEED_TAG][0])
        found = {}
        for offset, record in self._chain(start, _VERNEED, 4):
            names = [
                self._text(item[3])
                for _, item in self._chain(offset + record[3], _VERNAUX, 4)
                if not item[1] & _VER_FLG_WEAK
            ]
            found[self._text(record[2])] = tuple(names)
        return found

    def section(self, name: str) -> bytes:
        """The content of a section; empty when there is none of that name."""
        for section in self._section_table():
            if self._section_name(section) == name and section[1] != 8:  # 8: SHT_NOBITS
                return self._slice(section[4], section[5])
        return b""

    def strings(self) -> bytes:
        """The string table of the dynamic symbols."""
        return self._slice(self._strings, self._strings_size)

    def _section_table(self) -> list[tuple[int, ...]]:
        offset, count, names = self._sections
        if not offset or names >= count:
            return []
        return [self._unpack(_SECTION, offset + index * _SECTION.size) for index in range(count)]

    def _section_name(self, section: tuple[int, ...]) -> str:
        names = self._section_table()[self._sections[2]]
        start = names[4] + section[0]
        if start >= len(self._data):
            return ""
        end = self._data.find(b"\0", start, min(start + 256, len(self._data)))
        return self._data[start:end].decode("ascii", "replace") if end > start else ""

    def _symbol_count(self, start: int) -> int:
        # A hash table says it only roundabout, and an empty one not at all.
        for section in self._section_table():
            if section[1] == _SHT_DYNSYM and section[4] == start:
                return section[5] // _SYMBOL.size
        if _HASH in self._dynamic:
            offset = self._offset(self._dynamic[_HASH][0])
            return int(self._unpack(_PAIR, offset)[1])
        if _GNU_HASH_TAG in self._dynamic:
            # Symbols that are not hashed, such as undefined ones, come first.
            offset = self._offset(self._dynamic[_GNU_HASH_TAG][0])
            return int(self._unpack(_GNU_HASH, offset)[1])
        return 0

    def _gnu_candidates(self, name: bytes) -> Iterator[int]:
        value = 5381
        for byte in name:
            value = (value * 33 + byte) & 0xFFFFFFFF
        start = self._offset(self._dynamic[_GNU_HASH_TAG][0])
        buckets, first, words, shift = self._unpack(_GNU_HASH, start)
        if not buckets or not words:
            return
        position = start + _GNU_HASH.size
        (word,) = self._unpack(_WORD, position + value // 64 % words * 8)
        if not (word >> value % 64 & 1 and word >> (value >> shift & 0xFFFFFFFF) % 64 & 1):
            return
        position += words * 8
        (head,) = self._unpack(_NUMBER, position + value % buckets * 4)
        position += buckets * 4
        if head < first:
            return
        for index in range(head, head + _MAX_ENTRIES):
            (found,) = self._unpack(_NUMBER, position + (index - first) * 4)
            if found | 1 == value | 1:
                yield index
            if found & 1:
                return

    def _sysv_candidates(self, name: bytes) -> Iterator[int]:
        value = 0
        for byte in name:
            value = (value << 4) + byte
            high = value & 0xF0000000
            value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
        start = self._offset(self._dynamic[_HASH][0])
        buckets, _ = self._unpack(_PAIR, start)
        if not buckets:
            return
        (index,) = self._unpack(_NUMBER, start + 8 + value % buckets * 4)
        for _ in range(_MAX_ENTRIES):
            if not index:
                return
            yield index
            (index,) = self._unpack(_NUMBER, start + 8 + (buckets + index) * 4)

    def _chain(
        self, offset: int, record: struct.Struct, next_field: int
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        for _ in range(_MAX_ENTRIES):
            fields = self._unpack(record, offset)
            yield offset, fields
            if not fields[next_field]:
                return
            offset += fields[next_field]

    def _unpack(self, record: struct.Struct, offset: int) -> tuple[Any, ...]:
        if offset + record.size > len(self._data):
            raise self._damaged(f"{record.size} bytes at {offset}")
        return record.unpack_from(self._data, offset)

    def _damaged(self, found: str) -> ElfError:
        size = f"what lies within {len(self._data)} bytes"
        return ElfError(f"{self.path} is a damaged ELF file", expected=size, found=found)

    def _offset(self, address: int) -> int:
        for start, offset, size in self._loads:
            if start <= address < start + size:
                return int(address - start + offset)
        raise self._damaged(f"address {address:#x}")

    def _slice(self, offset: int, size: int) -> bytes:
        if offset + size > len(self._data):
            raise self._damaged(f"an end at {offset + size}")
        return self._data[offset : offset + size]

    def _texts(self, tag: int) -> tuple[str, ...]:
        return tuple(self._text(offset) for offset in self._dynamic.get(tag, ()))

    def _paths(self, tag: int) -> tuple[str, ...]:
        return tuple(part for text in self._texts(tag) for part in text.split(":") if part)

    def _text(self, offset: int) -> str:
        start = self._strings + offset
        if offset >= self._strings_size or start >= len(self._data):
            raise self._damaged(f"a name at {offset}")
        end = self._data.find(b"\0", start, min(start + _MAX_NAME, len(self._data)))
        if end < 0:
            raise self._damaged(f"a name without an end at {offset}")
        return self._data[start:end].decode("utf-8", "backslashreplace")

    def _is_text(self, offset: int, name: bytes) -> bool:
        start = self._strings + offset
        return self._data[start : start + len(name) + 1] == name + b"\0"


def highest_version(names: frozenset[str], prefix: str) -> str | None:
    """The highest number of versions such as ``GLIBCXX_3.4.30``; what has none is passed over.

    >>> highest_version(frozenset({"CXXABI_1.3.9", "CXXABI_1.3.13", "CXXABI_TM_1"}), "CXXABI")
    '1.3.13'
    """
    words = [name[len(prefix) + 1 :].split(".") for name in names if name.startswith(f"{prefix}_")]
    numbers = [tuple(map(int, word)) for word in words if all(part.isdigit() for part in word)]
    return ".".join(map(str, max(numbers))) if numbers else None
