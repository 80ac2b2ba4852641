"""Which entries of a fat binary a GPU would run: what thinning keeps.

The driver's rule (CUDA C++ Programming Guide, "Compute Capabilities" and "Feature set compiler
targets"): machine code of X.y runs on X.z with z >= y; of X.ya on X.y alone; of X.yf on X.z with
z >= y. Of what runs, the highest y is taken. Where no machine code runs, intermediate code (PTX)
of the highest version up to the GPU's own is compiled by the driver; of X.ya and X.yf where their
machine code would run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from builder.fatbin import Entry, Kind, Region
from kvreg.errors import UsageError

Capability = tuple[int, int]
"""A compute capability as numbers: (7, 5)."""


@dataclass(frozen=True)
class Choice:
    """What of one region stays, in file order.

    entries: what is kept. available: what the GPUs would use if nothing were left out; the two
    differ only where intermediate code is not wanted.
    """

    region: Region
    entries: tuple[Entry, ...]
    available: tuple[Entry, ...]

    @property
    def removed(self) -> tuple[Entry, ...]:
        """What is taken out."""
        kept = {entry.offset for entry in self.entries}
        return tuple(entry for entry in self.region.entries if entry.offset not in kept)


def parse_capability(text: str) -> Capability:
    """``7.5`` as (7, 5); an ``a`` or ``f`` behind it is dropped. Raises UsageError.

    >>> parse_capability("9.0a"), parse_capability("12.0")
    ((9, 0), (12, 0))
    """
    match = re.fullmatch(r"(\d+)\.(\d)[af]?", text, re.ASCII)
    if match is None:
        raise UsageError(
            "this is not a compute capability", expected="such as 7.5 or 9.0", found=repr(text)
        )
    return int(match[1]), int(match[2])


def capability_of(entry: Entry) -> Capability:
    """The compute capability that an entry is compiled for: (12, 0) for ``sm_120``."""
    return entry.sm // 10, entry.sm % 10


def runs(entry: Entry, gpu: Capability) -> bool:
    """Whether a GPU can use an entry: machine code as it is, PTX through the driver's compiler."""
    code = capability_of(entry)
    if entry.suffix == "a":
        return code == gpu
    if entry.is_sass or entry.suffix == "f":
        return code[0] == gpu[0] and code <= gpu
    return entry.kind == Kind.PTX and code <= gpu


def used(entries: Iterable[Entry], gpu: Capability) -> tuple[Entry, ...]:
    """The entries among which the driver takes one on this GPU; empty when none runs.

    Those of one version are all named, ``sm_90`` and ``sm_90a``: which of the two is taken is the
    driver's own choice.
    """
    running = [entry for entry in entries if runs(entry, gpu)]
    machine_code = [entry for entry in running if entry.is_sass]
    best = machine_code or running
    newest = max((capability_of(entry) for entry in best), default=None)
    return tuple(entry for entry in best if capability_of(entry) == newest)


def choose(region: Region, gpus: Sequence[Capability], *, ptx: bool = True) -> Choice:
    """What of a region the GPUs need. Without `ptx`, machine code alone is kept.

    Code that is neither machine code nor PTX (LTO-IR, unknown kinds) is kept: nobody here knows
    who needs it.
    """
    wanted = {entry.offset for gpu in gpus for entry in used(region.entries, gpu)}
    other = {e.offset for e in region.entries if not e.is_sass and e.kind != Kind.PTX}
    available = tuple(e for e in region.entries if e.offset in wanted | other)
    kept = tuple(e for e in available if ptx or e.kind != Kind.PTX)
    return Choice(region, kept, available)
