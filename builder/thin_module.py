"""Thinning one module: its device code for the wanted GPUs stays, everything else of it goes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from builder.elf_holes import Piece, punch
from builder.elf_layout import Layout, LayoutError, Section
from builder.fatbin import SECTIONS, Buffer, Entry, parse_fatbin, region_bytes
from builder.fatbin_choice import Capability, Choice, choose

_MERGE = 4096


@dataclass(frozen=True)
class Coded:
    """One section of device code and what of it stays, region by region."""

    section: Section
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class ModulePlan:
    """What thinning does to one module, decided before anything is written.

    `emptied` says why all of its device code goes although the GPUs would use some of it; None
    where what they use stays.
    """

    path: str
    coded: tuple[Coded, ...]
    emptied: str | None = None

    @property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(choice for item in self.coded for choice in item.choices)

    @property
    def kept(self) -> tuple[Entry, ...]:
        return tuple(entry for choice in self.choices for entry in choice.entries)

    @property
    def removed(self) -> tuple[Entry, ...]:
        return tuple(entry for choice in self.choices for entry in choice.removed)

    @property
    def available(self) -> tuple[Entry, ...]:
        """What the GPUs would use of the module as upstream built it."""
        return tuple(entry for choice in self.choices for entry in choice.available)

    @property
    def left_without(self) -> int:
        """Regions (translation units) that had code for the GPUs, and have none any more."""
        return sum(bool(c.available and not c.entries) for c in self.choices)

    @property
    def bereft(self) -> bool:
        """Whether the module loses all that the GPUs would use, and nobody said why it may."""
        return bool(self.available and not self.kept and self.emptied is None)

    def to_dict(self) -> dict[str, Any]:
        """Counts and stored bytes by architecture; units are regions of the container."""
        result: dict[str, Any] = {
            "path": self.path,
            "units": len(self.choices),
            "units_without_code_for_it": sum(not c.available for c in self.choices),
            "units_left_without": self.left_without,
            "kept": summary(self.kept),
            "removed": summary(self.removed),
        }
        return result if self.emptied is None else {**result, "emptied": self.emptied}


def summary(entries: Iterable[Entry]) -> dict[str, dict[str, int]]:
    """Architecture -> number of payloads, and their bytes with headers."""
    found: dict[str, dict[str, int]] = {}
    for entry in entries:
        item = found.setdefault(entry.architecture, {"count": 0, "bytes": 0})
        item["count"] += 1
        item["bytes"] += entry.end - entry.offset
    return dict(sorted(found.items(), key=lambda pair: (pair[0].partition("_")[0], pair[0])))


def plan_module(
    path: str,
    data: Buffer,
    gpus: Sequence[Capability],
    *,
    ptx: bool = True,
    emptied: str | None = None,
) -> ModulePlan:
    """Choose for every region of a module. Raises LayoutError, FatbinError for what is damaged."""
    coded = []
    for section in Layout.read(data).sections:
        if section.label not in SECTIONS or not section.stored:
            continue
        regions = parse_fatbin(data, section.offset, section.offset + section.size)
        choices = tuple(choose(region, () if emptied else gpus, ptx=ptx) for region in regions)
        if emptied:
            had = (choose(region, gpus) for region in regions)
            choices = tuple(
                Choice(region, (), h.available) for region, h in zip(regions, had, strict=True)
            )
        coded.append(Coded(section, choices))
    return ModulePlan(path, tuple(coded), emptied)


def thin_module(data: Buffer, plan: ModulePlan) -> bytes | None:
    """The module with what the plan keeps, None when it stays byte for byte what it was.

    Where too little goes for the file to become smaller, what goes is overwritten with zeros.
    """
    if not plan.removed:
        return None
    result: Buffer = data
    for number, item in enumerate(plan.coded):
        if not any(choice.removed for choice in item.choices):
            continue
        # Sections are found anew: the ones before have moved what follows them.
        section = next(s for s in Layout.read(result).sections if _is(s, item.section))
        pieces = _pieces(data, item)
        try:
            result = _written(lambda write: punch(result, section, pieces, write))  # noqa: B023
        except LayoutError:
            if number or len(plan.coded) > 1:
                raise
            result = _overwritten(result, section, pieces)
    return bytes(result)


def _is(section: Section, wanted: Section) -> bool:
    return (section.label, section.address) == (wanted.label, wanted.address)


def _pieces(data: Buffer, item: Coded) -> list[Piece]:
    """What stays of a section. Near neighbours become one piece, with the zeros between them."""
    pieces: list[Piece] = []
    for choice in item.choices:
        region = choice.region
        piece = Piece(
            region.offset - item.section.offset, region_bytes(data, region, choice.entries)
        )
        if pieces and piece.offset - pieces[-1].end < _MERGE:
            last = pieces.pop()
            gap = bytes(piece.offset - last.end)
            piece = Piece(last.offset, last.data + gap + piece.data)
        pieces.append(piece)
    return pieces


def _written(produce: Callable[[Callable[[bytes], object]], int]) -> bytes:
    target = io.BytesIO()
    size = produce(target.write)
    assert size == target.tell()
    return target.getvalue()


def _overwritten(data: Buffer, section: Section, pieces: Sequence[Piece]) -> bytes:
    result = bytearray(data)
    result[section.offset : section.offset + section.size] = bytes(section.size)
    for piece in pieces:
        start = section.offset + piece.offset
        result[start : start + len(piece.data)] = piece.data
    return bytes(result)
