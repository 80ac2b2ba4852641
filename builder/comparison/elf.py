"""Shared objects section by section; device code entry by entry."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from builder.comparison.code import compare_device_code
from builder.comparison.content import compare_bytes, compare_strings
from builder.comparison.model import Part
from builder.elf_layout import Layout, LayoutError, Section
from builder.fatbin import SECTIONS, FatbinError

SHF_EXECINSTR = 0x4
BUILD_ID = ".note.gnu.build-id"
_OF_NAMES = frozenset(
    {".symtab", ".dynsym", ".hash", ".gnu.hash", ".gnu.version", ".rela.dyn", ".rela.plt"}
    | {".eh_frame", ".eh_frame_hdr", ".dynamic", ".got", ".got.plt", ".shstrtab"}
)
"""Sections that hold places, hashes and offsets of what others hold."""


def is_elf(data: bytes) -> bool:
    """Whether it begins as an ELF file does."""
    return data[:4] == b"\x7fELF"


def compare_elf(a: bytes, b: bytes) -> tuple[Part, ...]:
    """The sections that differ; the file as a whole where a table cannot be read."""
    try:
        ours, theirs = _sections(a), _sections(b)
    except LayoutError as error:
        return (Part("file", f"{compare_bytes(a, b).what}; {error.what}"),)
    parts: list[Part] = []
    for name in [*ours, *(n for n in theirs if n not in ours)]:
        one, other = ours.get(name), theirs.get(name)
        if one is None or other is None:
            parts.append(Part(name, f"only in {'a' if other is None else 'b'}"))
            continue
        if _bytes(a, one) != _bytes(b, other):
            parts += _section(a, one, b, other, name)
    if not parts:
        return (_around(a, ours, b, theirs),)
    return tuple(_derived(parts))


def _section(a: bytes, one: Section, b: bytes, other: Section, name: str) -> list[Part]:
    first, second = _bytes(a, one), _bytes(b, other)
    if one.label in SECTIONS:
        try:
            if parts := compare_device_code(first, second, name):
                return list(parts)
        except FatbinError as error:
            return [Part(name, f"{compare_bytes(first, second).what}; {error.what}")]
    if one.label == BUILD_ID:
        return [Part(name, compare_bytes(first, second).what, ("build-id",))]
    if one.label.endswith(("str", "strtab")) and _strings(first) == _strings(second):
        return [Part(name, "the same names", ("ordering",))]
    if one.flags & SHF_EXECINSTR or one.label in _OF_NAMES:
        return [compare_bytes(first, second, name)]
    return [compare_strings(first, second, name)]


def _derived(parts: list[Part]) -> list[Part]:
    """Marks what follows from the others, where all of these have a reason."""
    own = [p for p in parts if p.where not in _OF_NAMES]
    if not own or not all(p.reasons for p in own):
        return parts
    return [
        replace(p, reasons=("follows",)) if p.where in _OF_NAMES and not p.reasons else p
        for p in parts
    ]


def _around(a: bytes, ours: dict[str, Section], b: bytes, theirs: dict[str, Section]) -> Part:
    """What differs although every section has the same bytes: tables, or what lies between."""
    moved = [n for n in ours if ours[n].offset != theirs[n].offset]
    if moved and list(ours) != list(theirs):
        return Part(
            "sections", "the same sections at other places", ("ordering",), tuple(moved[:4])
        )
    return Part("headers and padding", compare_bytes(a, b).what)


def _sections(data: bytes) -> dict[str, Section]:
    """Sections by name; the second of a name is ``<name> (2)``."""
    seen: Counter[str] = Counter()
    found = {}
    for section in Layout.read(data).sections:
        label = section.label or "(unnamed)"
        seen[label] += 1
        found[label if seen[label] == 1 else f"{label} ({seen[label]})"] = section
    return found


def _bytes(data: bytes, section: Section) -> bytes:
    return data[section.offset : section.offset + section.stored]


def _strings(content: bytes) -> Counter[bytes]:
    return Counter(content.split(b"\0"))
