"""Takes parts of a loaded section out of an ELF file, which becomes smaller, and moves no address.

Code refers to what it loads by address, so every byte that stays keeps its own. What goes is the
file space behind the addresses in between: the segment that held it is split, and each part lies at
the next file offset that agrees with its address modulo the page size, as the loader requires.
Between the parts nothing is mapped. What is changed in the file, and nothing else:

* the segment becomes several; the table of segments, now longer, moves into the first hole, so that
  it stays part of the loaded image;
* the section becomes several of its name: the first keeps its number, so that symbols keep theirs,
  the others come last in the table of sections, which lies at the end of the file;
* file offsets of what comes later.

Contents and addresses of all other sections stay as they are (`builder.thin_check` proves it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from builder.elf_layout import (
    HEADER_SIZE,
    PT_LOAD,
    PT_PHDR,
    SECTION_SIZE,
    SEGMENT_SIZE,
    Layout,
    LayoutError,
    Section,
    Segment,
)
from builder.fatbin import Buffer

Write = Callable[[bytes], object]
_CHUNK = 8 << 20


@dataclass(frozen=True)
class Piece:
    """Bytes that stay in a section, `offset` bytes after the section's start."""

    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


@dataclass(frozen=True)
class _Span:
    """Addresses of the segment that stay in the file, and the file offset where they now lie."""

    start: int
    end: int
    offset: int = 0


def punch(data: Buffer, section: Section, pieces: Sequence[Piece], write: Write) -> int:
    """Write the file with `section` holding `pieces` alone, zeros between near ones; its new size.

    `pieces` are in order and do not overlap. Raises LayoutError for a file that cannot be laid out
    so: the section must lie whole in one read-only segment that has no zero-filled end.
    """
    layout = Layout.read(data)
    index = layout.sections.index(section)
    load = _segment(layout, section)
    page = max(s.align for s in layout.segments if s.type == PT_LOAD) or 1
    if page & (page - 1):
        raise LayoutError("a segment's alignment is no power of two", found=str(page))
    # Room for the table of segments: one row for each part, at the most.
    room = (len(layout.segments) + len(pieces) + 1) * SEGMENT_SIZE + 8
    table_at, spans = _spans(load, section, pieces, page, room)
    spans = _placed(load, spans, page)
    parts = [_part(load, span, page) for span in spans]
    at = layout.segments.index(load)
    ended = spans[-1].offset + spans[-1].end - spans[-1].start
    shift = (load.end - ended) // page * page
    move = _Move(load, spans, shift)
    segments = [
        *(replace(s, offset=move(s.offset, s.address)) for s in layout.segments[:at]),
        *parts,
        *(replace(s, offset=move(s.offset, s.address)) for s in layout.segments[at + 1 :]),
    ]
    span = next(s for s in spans if s.start <= table_at < s.end)
    table_offset = span.offset + table_at - span.start
    table_size = len(segments) * SEGMENT_SIZE
    segments = [
        replace(
            s, offset=table_offset, address=table_at, physical=table_at, size=table_size,
            memory_size=table_size,
        ) if s.type == PT_PHDR else s
        for s in segments
    ]  # fmt: skip
    own = _sections(section, pieces, spans)
    # The old table of sections goes where it was the end of the file, as linkers put it.
    end = layout.header.sections_at
    if end + len(layout.sections) * SECTION_SIZE != layout.size or end < load.end:
        end = layout.size
    sections_at = -(-(end - shift) // 8) * 8
    sections = [
        *(
            own[0] if i == index else replace(s, offset=move(s.offset, s.address))
            for i, s in enumerate(layout.sections)
        ),
        *own[1:],
    ]
    header = replace(
        layout.header,
        segments_at=table_offset,
        segments=len(segments),
        sections_at=sections_at,
        sections=len(sections),
    )
    table = b"".join(s.pack() for s in segments)
    contents = _Contents(data, load, section, [*pieces, Piece(table_at - section.address, table)])
    # Before the segment, which may also be the one with the header.
    head = header.pack()
    if load.offset:
        write(head)
        _copy(data, HEADER_SIZE, load.offset, write)
    else:
        contents.header = head
    position = load.offset
    for span in spans:
        write(bytes(span.offset - position))
        contents.write(span.start, span.end, write)
        position = span.offset + span.end - span.start
    write(bytes(load.end - shift - position))
    _copy(data, load.end, end, write)
    write(bytes(sections_at - (end - shift)))
    write(b"".join(s.pack() for s in sections))
    return sections_at + len(sections) * SECTION_SIZE


class _Move:
    """Where a file offset of the old layout is in the new one."""

    def __init__(self, load: Segment, spans: Sequence[_Span], shift: int) -> None:
        self.load, self.spans, self.shift = load, spans, shift

    def __call__(self, offset: int, address: int) -> int:
        if offset < self.load.offset:
            return offset
        if offset >= self.load.end:
            return offset - self.shift
        wanted = self.load.address + offset - self.load.offset
        for span in self.spans:
            if span.start <= wanted < span.end:
                return span.offset + wanted - span.start
        raise LayoutError("something else lies in the section", found=f"address {address:#x}")


def _segment(layout: Layout, section: Section) -> Segment:
    holding = [
        s
        for s in layout.segments
        if s.type == PT_LOAD
        and s.address <= section.address
        and section.address + section.size <= s.address + s.size
    ]
    if len(holding) != 1:
        raise LayoutError(f"{section.label} does not lie in exactly one loaded segment")
    (found,) = holding
    if found.size != found.memory_size or section.offset - found.offset != (
        section.address - found.address
    ):
        raise LayoutError(f"the segment of {section.label} is not stored as it is loaded")
    later = [s for s in layout.segments if s.type == PT_LOAD and s.address > found.address]
    if any(s.offset < found.end for s in later):
        raise LayoutError("segments do not follow each other in the file as in memory")
    return found


def _spans(
    load: Segment, section: Section, pieces: Sequence[Piece], page: int, room: int
) -> tuple[int, list[_Span]]:
    """Where the table of segments goes, and what stays in the file: no two parts on one page."""
    stay = [(load.address, section.address)]
    stay += [(section.address + p.offset, section.address + p.end) for p in pieces]
    stay.append((section.address + section.size, load.address + load.size))
    table_at, found = None, []
    for start, end in stay:
        if start == end and found:
            continue
        gap = start - found[-1][1] if found else 0
        if table_at is None and found and gap >= room + 4 * page:
            table_at = -(-found[-1][1] // 8) * 8
            found[-1] = (found[-1][0], table_at + room)
        # Two parts on one page would hide each other, and less than a page is nothing to gain.
        if found and start // page * page < -(-found[-1][1] // page) * page + page:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    if table_at is None:
        raise LayoutError(f"there is too little to take out of {section.label}")
    return table_at, [_Span(start, end) for start, end in found]


def _placed(load: Segment, spans: Sequence[_Span], page: int) -> list[_Span]:
    placed, position = [], load.offset
    for span in spans:
        offset = position + (span.start - position) % page
        placed.append(replace(span, offset=offset))
        position = offset + span.end - span.start
    # The first part must begin where the segment did.
    if placed[0].offset != load.offset:
        raise LayoutError("a segment's offset and address disagree", found=f"{load.offset:#x}")
    return placed


def _part(load: Segment, span: _Span, page: int) -> Segment:
    size = span.end - span.start
    return replace(
        load,
        offset=span.offset,
        address=span.start,
        physical=load.physical + span.start - load.address,
        size=size,
        memory_size=size,
        align=page,
    )


def _sections(section: Section, pieces: Sequence[Piece], spans: Sequence[_Span]) -> list[Section]:
    """One section for each part of the file that holds pieces, from the first to the last."""
    found = []
    for span in spans:
        inside = [p for p in pieces if span.start <= section.address + p.offset < span.end]
        if inside:
            start = section.address + inside[0].offset
            found.append(
                replace(
                    section,
                    address=start,
                    offset=span.offset + start - span.start,
                    size=inside[-1].end - inside[0].offset,
                )
            )
    if not found or found[0].address != section.address:
        raise LayoutError(f"{section.label} does not begin with device code")
    return found


class _Contents:
    """The loaded bytes of the segment as they shall be, by address."""

    def __init__(
        self, data: Buffer, load: Segment, section: Section, pieces: Sequence[Piece]
    ) -> None:
        self.data, self.load, self.section = data, load, section
        self.pieces = sorted(pieces, key=lambda piece: piece.offset)
        self.header = b""

    def write(self, start: int, end: int, write: Write) -> None:
        """Everything from one address to another."""
        first, last = self.section.address, self.section.address + self.section.size
        self._old(start, min(end, first), write)
        position = max(start, first)
        for piece in self.pieces:
            at, until = first + piece.offset, first + piece.end
            if start <= at < end:
                write(bytes(at - position))
                write(piece.data)
                position = until
        if position < min(end, last):
            write(bytes(min(end, last) - position))
        self._old(max(start, last), end, write)

    def _old(self, start: int, end: int, write: Write) -> None:
        if start >= end:
            return
        offset = self.load.offset + start - self.load.address
        until = self.load.offset + end - self.load.address
        if offset == 0 and self.header:
            write(self.header)
            offset += len(self.header)
        _copy(self.data, offset, until, write)


def _copy(data: Buffer, start: int, end: int, write: Write) -> None:
    for position in range(start, end, _CHUNK):
        write(bytes(data[position : min(end, position + _CHUNK)]))
