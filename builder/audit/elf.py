"""What the audit needs to know of one ELF file, read from a buffer without copying it.

pyelftools finds the sections; symbol, version and dynamic tables are unpacked here in one pass
each, because the library's object per symbol would take minutes on torch's libraries, and because
its walk over version records follows counts and links that a hostile file can make endless.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap

from elftools.common.exceptions import ELFError
from elftools.construct import ConstructError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Section

from builder.fatbin import SECTIONS, Buffer
from kvreg.errors import VerificationError

ELF_MAGIC = b"\x7fELF"
MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64", "EM_CUDA": "cuda"}

_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")
_VERNEED = struct.Struct("<HHIII")
_VERNAUX = struct.Struct("<IHHII")
_GLOBAL, _WEAK, _GNU_UNIQUE = 1, 2, 10
_DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 1, 14, 15, 29
_VER_FLG_WEAK = 2
_MAX_NAME = 1 << 16
_MAX_NAMES = 512 << 20


class ElfError(VerificationError):
    """The bytes are not an ELF file that can be audited."""


@dataclass(frozen=True)
class Version:
    """A version such as ``GLIBC_2.34`` that the file needs of the library `file`."""

    file: str
    name: str


@dataclass(frozen=True)
class Undefined:
    """A symbol that something else must provide; `version` None when it names none."""

    name: str
    weak: bool
    version: Version | None


@dataclass(frozen=True)
class ElfFacts:
    """One shared object. `fatbin` are the (start, end) byte offsets of its device code."""

    machine: str
    soname: str | None
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]
    versions: tuple[Version, ...]
    undefined: tuple[Undefined, ...]
    defined: frozenset[str]
    fatbin: tuple[tuple[int, int], ...]


def read_elf(data: Buffer) -> ElfFacts:
    """Read a 64-bit little-endian ELF file. Raises ElfError for any other and for damaged ones."""
    if bytes(data[:4]) != ELF_MAGIC:
        raise ElfError("this is not an ELF file", expected="7f454c46", found=bytes(data[:4]).hex())
    if bytes(data[4:6]) != b"\x02\x01":
        raise ElfError(
            "this ELF file is not for a supported machine",
            expected="64 bits, little endian",
            found=f"class {data[4]}, data {data[5]}",
            remedy="build for x86_64 or aarch64",
        )
    try:
        return _Reader(data).facts()
    except ElfError:
        raise
    except (ELFError, ConstructError, struct.error, ValueError, KeyError, OverflowError) as error:
        raise ElfError(
            "this ELF file is damaged", found=f"{type(error).__name__}: {error}"
        ) from error
    except (TypeError, AttributeError, IndexError, UnicodeError, RecursionError) as error:
        # pyelftools meets hostile headers with these as well
        raise ElfError(
            "this ELF file is damaged", found=f"{type(error).__name__}: {error}"
        ) from error


class _Reader:
    def __init__(self, data: Buffer) -> None:
        self.data = data
        stream = data if isinstance(data, mmap) else io.BytesIO(data)
        self.elf = ELFFile(stream)
        self.sections: dict[str, Section] = {}
        # A file may have several sections of one name: device code that was thinned does.
        self.coded = []
        for section in self.elf.iter_sections():
            self.sections[section.name] = section
            if section.name in SECTIONS:
                self.coded.append(section)
        self.names = 0

    def facts(self) -> ElfFacts:
        machine = self.elf["e_machine"]
        if not self.sections and self.elf.num_segments():
            raise ElfError(
                "this ELF file has no section table",
                expected="sections, to read its symbols from",
                found="segments alone",
                remedy="strip with `strip` or -Wl,-s, which keep the dynamic sections' headers",
            )
        needed, soname, rpath, runpath = self._dynamic()
        versions, by_index = self._versions()
        undefined, defined = self._symbols(by_index)
        return ElfFacts(
            machine=MACHINES.get(machine, str(machine)),
            soname=soname,
            needed=needed,
            rpath=rpath,
            runpath=runpath,
            versions=versions,
            undefined=undefined,
            defined=defined,
            fatbin=tuple(map(self._range, self.coded)),
        )

    def _range(self, section: Section) -> tuple[int, int]:
        if section["sh_type"] == "SHT_NOBITS":
            return 0, 0
        start, size = section["sh_offset"], section["sh_size"]
        if start + size > len(self.data):
            raise ElfError(
                f"section {section.name} lies outside its file",
                expected=f"an end within {len(self.data)} bytes",
                found=f"{start + size}",
            )
        return start, start + size

    def _bytes(self, section: Section | None) -> bytes:
        if section is None:
            return b""
        start, end = self._range(section)
        return bytes(self.data[start:end])

    def _strings(self, section: Section) -> bytes:
        return self._bytes(self.elf.get_section(section["sh_link"]))

    def _name(self, strings: bytes, offset: int) -> str:
        end = strings.find(b"\0", offset, offset + _MAX_NAME)
        if not 0 <= offset < len(strings) or end < 0:
            raise ElfError("a name lies outside the string table", found=f"offset {offset}")
        self.names += end - offset
        if self.names > _MAX_NAMES:
            raise ElfError("the names are too long", expected=f"{_MAX_NAMES} bytes in all")
        return strings[offset:end].decode("utf-8", "backslashreplace")

    def _dynamic(self) -> tuple[tuple[str, ...], str | None, tuple[str, ...], tuple[str, ...]]:
        section = self.sections.get(".dynamic")
        if section is None:
            return (), None, (), ()
        strings, table = self._strings(section), self._bytes(section)
        found: dict[int, list[str]] = {}
        for tag, value in _DYNAMIC.iter_unpack(table[: len(table) // 16 * 16]):
            if tag == 0:
                break
            if tag in (_DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_RUNPATH):
                found.setdefault(tag, []).append(self._name(strings, value))
        soname = found.get(_DT_SONAME, [None])[0]
        paths = [
            tuple(part for text in found.get(tag, []) for part in text.split(":"))
            for tag in (_DT_RPATH, _DT_RUNPATH)
        ]
        return tuple(found.get(_DT_NEEDED, [])), soname, paths[0], paths[1]

    def _versions(self) -> tuple[tuple[Version, ...], dict[int, Version]]:
        section = self.sections.get(".gnu.version_r")
        if section is None:
            return (), {}
        strings, table = self._strings(section), self._bytes(section)
        required: list[Version] = []
        by_index: dict[int, Version] = {}
        for offset, record in _chain(table, _VERNEED, 0, next_field=4):
            file = self._name(strings, record[2])
            for _, item in _chain(table, _VERNAUX, offset + record[3], next_field=4):
                version = Version(file, self._name(strings, item[3]))
                by_index[item[2] & 0x7FFF] = version
                if not item[1] & _VER_FLG_WEAK:
                    required.append(version)
        return tuple(dict.fromkeys(required)), by_index

    def _symbols(
        self, by_index: dict[int, Version]
    ) -> tuple[tuple[Undefined, ...], frozenset[str]]:
        section = self.sections.get(".dynsym")
        if section is None:
            return (), frozenset()
        strings, table = self._strings(section), self._bytes(section)
        numbers = self._bytes(self.sections.get(".gnu.version"))
        indexes = struct.unpack(f"<{len(numbers) // 2}H", numbers[: len(numbers) // 2 * 2])
        undefined: list[Undefined] = []
        defined: list[str] = []
        records = _SYMBOL.iter_unpack(table[: len(table) // _SYMBOL.size * _SYMBOL.size])
        for position, (offset, info, other, index, _, _) in enumerate(records):
            if not offset or info >> 4 not in (_GLOBAL, _WEAK, _GNU_UNIQUE):
                continue
            if index:
                if other & 3 in (0, 3):
                    defined.append(self._name(strings, offset))
                continue
            number = indexes[position] & 0x7FFF if position < len(indexes) else 0
            name = self._name(strings, offset)
            undefined.append(Undefined(name, info >> 4 == _WEAK, by_index.get(number)))
        return tuple(undefined), frozenset(defined)


def _chain(
    table: bytes, record: struct.Struct, offset: int, next_field: int
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Records linked by a relative offset, which must lead forwards: so the walk ends."""
    while offset + record.size <= len(table):
        fields = record.unpack_from(table, offset)
        yield offset, fields
        if fields[next_field] < record.size:
            return
        offset += fields[next_field]
