"""Ninja's log: which object took how long."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_OBJECT = re.compile(r"(?:.*/)?CMakeFiles/(?P<module>[^/]+)\.dir/(?P<source>.+)\.o\Z")


@dataclass(frozen=True)
class Unit:
    """One translation unit: the module it goes into, its source, and wall seconds."""

    module: str
    source: str
    seconds: float


def read_units(path: Path) -> tuple[Unit, ...]:
    """Translation units of a ``.ninja_log`` (version 5 to 7), slowest first; none without a log.

    A log line is ``start_ms end_ms mtime output hash``, parted by tabs; of an output that was
    made twice the last line counts.
    """
    if not path.is_file():
        return ()
    units: dict[str, Unit] = {}
    for line in path.read_text("utf-8", "replace").splitlines():
        fields = line.split("\t")
        if line.startswith("#") or len(fields) != 5:
            continue
        match = _OBJECT.match(fields[3])
        if match:
            seconds = (int(fields[1]) - int(fields[0])) / 1000
            units[fields[3]] = Unit(match["module"], match["source"], seconds)
    return tuple(sorted(units.values(), key=lambda u: (-u.seconds, u.source)))
