"""Compares a thinned module with the one it was made of, byte by byte.

Written apart from what thins, on the layouts alone: a fault there is found here. What must hold:

* every section but those of device code has the same row in the table, save its file offset, and
  the same bytes; the segments other than the split one too;
* every loaded byte outside the device code is loaded at the same address with the same rights;
* at the address of every region lies a region with exactly the entries that were to stay, byte for
  byte, and between regions nothing but zeros and the file's own table of segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from builder.elf_layout import PT_LOAD, PT_PHDR, SEGMENT_SIZE, Layout, Section
from builder.fatbin import SECTIONS, Buffer, parse_fatbin
from builder.thin_module import ModulePlan
from kvreg.errors import Problem, VerificationError

_CHUNK = 8 << 20


def check_module(old: Buffer, new: Buffer, plan: ModulePlan) -> None:
    """Raises VerificationError with everything in which `new` is not `old` thinned by `plan`."""
    before, after = Layout.read(old), Layout.read(new)
    problems = [
        *_header(before, after),
        *_sections(before, after, old, new),
        *_segments(before, after, old, new),
        *_code(before, after, old, new, plan),
    ]
    if problems:
        raise VerificationError(
            f"{plan.path} is not what thinning should have made of it",
            problems=[Problem(plan.path, text) for text in problems],
            remedy="this is a fault of the builder: keep upstream's wheel and report it",
        )


def _header(before: Layout, after: Layout) -> Iterator[str]:
    tables = ("segments_at", "segments", "sections_at", "sections")
    same = {name: getattr(before.header, name) for name in tables}
    if replace(after.header, **same) != before.header:
        yield "the ELF header changed"


def _sections(before: Layout, after: Layout, old: Buffer, new: Buffer) -> Iterator[str]:
    count = len(before.sections)
    coded = [section for section in before.sections if section.label in SECTIONS]
    for number, section in enumerate(before.sections):
        if number >= len(after.sections):
            yield f"section {section.label} is gone"
            continue
        found = after.sections[number]
        code = section.label in SECTIONS
        if replace(found, offset=section.offset, size=section.size if code else found.size) != (
            section
        ):
            yield f"the table's row of section {section.label} changed"
        elif not code and not _equal(old, section.offset, new, found.offset, section.stored):
            yield f"the bytes of section {section.label} changed"
    for section in after.sections[count:]:
        if not any(_inside(section, item) and section.label == item.label for item in coded):
            yield f"there is a section {section.label} that was not there"


def _inside(part: Section, whole: Section) -> bool:
    end = whole.address + whole.size
    return whole.address <= part.address and part.address + part.size <= end


def _segments(before: Layout, after: Layout, old: Buffer, new: Buffer) -> Iterator[str]:
    others = [s for s in before.segments if s.type not in (PT_LOAD, PT_PHDR)]
    found = [s for s in after.segments if s.type not in (PT_LOAD, PT_PHDR)]
    if [replace(s, offset=0) for s in others] != [replace(s, offset=0) for s in found]:
        yield "the segments that are not loaded changed"
    else:
        for one, other in zip(others, found, strict=True):
            if not _equal(old, one.offset, new, other.offset, one.size):
                yield f"the bytes of a segment of type {one.type:#x} changed"
    loads = [s for s in after.segments if s.type == PT_LOAD]
    if loads != sorted(loads, key=lambda s: s.address):
        yield "the loaded segments are not in order"
    for segment in loads:
        if segment.align > 1 and (segment.offset - segment.address) % segment.align:
            yield f"the segment at {segment.address:#x} cannot be mapped"
    for one, other in pairwise(loads):
        page = max(one.align, 1)
        if -(-(one.address + one.memory_size) // page) * page > other.address // page * page:
            yield f"the segment at {other.address:#x} hides the one before it"
    for load in (s for s in before.segments if s.type == PT_LOAD):
        parts = [s for s in loads if load.address <= s.address < load.address + load.memory_size]
        if any(s.flags != load.flags for s in parts):
            yield f"the rights of the segment at {load.address:#x} changed"
        end = load.address + load.memory_size
        if not parts or parts[0].address != load.address:
            yield f"the segment at {load.address:#x} begins elsewhere"
        elif load.memory_size != load.size and parts[-1].memory_size != load.memory_size:
            yield f"the zeros at the end of the segment at {load.address:#x} changed"
        elif parts[-1].address + parts[-1].memory_size > end:
            yield f"the segment at {load.address:#x} became larger"
        for start, stop in _outside(before, load.address, load.address + load.size):
            place = after.loaded(start, stop - start)
            if place is None:
                yield f"what was loaded at {start:#x} is no more"
            elif load.offset == 0 and start == load.address:
                # The ELF header itself, compared above field by field.
                if not _equal(old, 64, new, place[0] + 64, stop - start - 64):
                    yield "what is loaded behind the ELF header changed"
            elif not _equal(old, load.offset + start - load.address, new, place[0], stop - start):
                yield f"what is loaded at {start:#x} changed"


def _outside(layout: Layout, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of an address range that belong to no section of device code."""
    coded = sorted(
        (s.address, s.address + s.size)
        for s in layout.sections
        if s.label in SECTIONS and s.stored and start <= s.address < end
    )
    for first, last in coded:
        if start < first:
            yield start, first
        start = last
    if start < end:
        yield start, end


def _code(
    before: Layout, after: Layout, old: Buffer, new: Buffer, plan: ModulePlan
) -> Iterator[str]:
    regions = 0
    for item in plan.coded:
        for choice in item.choices:
            address = item.section.address + choice.region.offset - item.section.offset
            place = after.loaded(address, 16)
            if place is None:
                yield f"the device code at {address:#x} is not loaded"
                continue
            size = 16 + int.from_bytes(bytes(new[place[0] + 8 : place[0] + 16]), "little")
            whole = after.loaded(address, size)
            if whole is None:
                yield f"the device code at {address:#x} is not loaded whole"
                continue
            (region,) = parse_fatbin(new, *whole)
            kept = [(old, e.offset, e.end) for e in choice.entries]
            found = [(new, e.offset, e.end) for e in region.entries]
            if [stop - start for _, start, stop in kept] != [e - s for _, s, e in found] or not all(
                _equal(old, start, new, place, stop - start)
                for (_, start, stop), (_, place, _) in zip(kept, found, strict=True)
            ):
                yield f"the device code at {address:#x} is not what was to stay"
    # And nothing is in the sections beside the regions.
    for section in after.sections:
        if section.label in SECTIONS and section.stored:
            regions += len(parse_fatbin(new, section.offset, section.offset + section.size))
    if regions != len(plan.choices):
        yield f"there are {regions} regions of device code, not {len(plan.choices)}"
    yield from _holes(before, after, new)


def _holes(before: Layout, after: Layout, new: Buffer) -> Iterator[str]:
    """Loaded bytes in the place of device code that are in no section: zeros, or the table."""
    table = range(
        after.header.segments_at, after.header.segments_at + after.header.segments * SEGMENT_SIZE
    )
    sections = [s for s in after.sections if s.stored]
    for code in (s for s in before.sections if s.label in SECTIONS and s.stored):
        for load in (s for s in after.segments if s.type == PT_LOAD):
            start = max(load.address, code.address)
            end = min(load.address + load.size, code.address + code.size)
            if start >= end:
                continue
            first, last = load.offset + start - load.address, load.offset + end - load.address
            known = sorted(
                [(s.offset, s.offset + s.size) for s in sections]
                + [(table.start, table.stop)]
            )  # fmt: skip
            for gap in _gaps(first, last, known):
                if any(bytes(new[gap[0] : gap[1]])):
                    yield f"there are unknown bytes at file offset {gap[0]}"


def _gaps(start: int, end: int, known: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for first, last in known:
        if last <= start or first >= end:
            continue
        if start < first:
            yield start, first
        start = max(start, last)
    if start < end:
        yield start, end


def _equal(old: Buffer, at: int, new: Buffer, there: int, size: int) -> bool:
    return all(
        bytes(old[at + i : at + min(i + _CHUNK, size)])
        == bytes(new[there + i : there + min(i + _CHUNK, size)])
        for i in range(0, size, _CHUNK)
    )
