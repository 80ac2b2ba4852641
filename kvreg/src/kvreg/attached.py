"""Layouts that came with a notebook: searched for under its attached inputs.

The directories of ``$KVREG_INPUTS``, else ``/kaggle/input``, are searched three levels deep for
OCI image layouts, ordinary ones and packed ones (`kvreg.model.layout`). Inputs may be data sets of
millions of files, so the search is bounded.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvreg.reference import LayoutReference

ENVIRONMENT = "KVREG_INPUTS"
DEFAULT_INPUTS = "/kaggle/input"
DEPTH = 3
LIMIT = 20_000
"""Directory entries that are looked at before the search gives up."""

_MARKERS = frozenset({"oci-layout", "index.json"})


@dataclass(frozen=True)
class Found:
    """What a search found; `complete` is False when it gave up at `LIMIT` entries."""

    layouts: tuple[LayoutReference, ...]
    searched: tuple[Path, ...]
    complete: bool


def input_directories() -> tuple[Path, ...]:
    """The directories to search, whether they exist or not."""
    named = os.environ.get(ENVIRONMENT)
    parts = (DEFAULT_INPUTS if named is None else named).split(os.pathsep)
    return tuple(Path(part).absolute() for part in parts if part)


def find_layouts(directories: tuple[Path, ...] | None = None, *, limit: int = LIMIT) -> Found:
    """All layouts under `directories` (those of the environment by default), nearest first."""
    roots = input_directories() if directories is None else directories
    found: list[LayoutReference] = []
    seen = 0
    level = list(roots)
    for _ in range(DEPTH + 1):
        below: list[Path] = []
        for folder in level:
            names: set[str] = set()
            folders: list[Path] = []
            for entry in _entries(folder):
                seen += 1
                if seen > limit:
                    return Found(tuple(found), roots, complete=False)
                names.add(entry.name)
                if _is_directory(entry):
                    folders.append(Path(entry.path))
            if names >= _MARKERS:
                # What lies below a layout are its blobs.
                found.append(LayoutReference(folder))
            else:
                below += sorted(folders)
        level = below
    return Found(tuple(found), roots, complete=True)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError:
        # Not there, or not ours to read: nothing that could be pulled from.
        return


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        # Inputs may be mounted through links; a loop of them ends with the depth.
        return entry.is_dir()
    except OSError:
        return False
