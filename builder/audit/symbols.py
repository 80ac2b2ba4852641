"""Which symbols the libraries of a wheel export: torch's, above all.

Reading them means unpacking 1.7 GB, so the table is kept, compressed, under the wheel's sha256.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import zstandard

from builder.audit.elf import ELF_MAGIC, read_elf
from builder.audit.wheel import Wheel

_FORMAT = 1
_MAX_TABLE = 256 << 20


@dataclass(frozen=True)
class Library:
    """One shared library: its file name, what it needs, and what it exports."""

    file: str
    soname: str
    needed: tuple[str, ...]
    symbols: frozenset[str]


@dataclass(frozen=True)
class SymbolTable:
    """The libraries of one wheel, by soname; `sha256` (hex) is the wheel's."""

    wheel: str
    sha256: str
    name: str
    version: str
    requires: tuple[str, ...]
    libraries: Mapping[str, Library]


def read_symbols(
    path: Path,
    cache: Path | None = None,
    *,
    filename: str | None = None,
    progress: Callable[[int], object] | None = None,
) -> SymbolTable:
    """The symbol table of a wheel's libraries, from the folder `cache` when it is known there.

    `filename` replaces the file's own name (a cache knows it by digest). `progress` is
    called with numbers of unpacked bytes. Raises NotFoundError and VerificationError for a
    missing or damaged wheel.
    """
    with Wheel(path, filename) as wheel:
        sha256 = wheel.sha256()
        kept = cache / f"{sha256}.json.zst" if cache else None
        if kept and (table := _load(kept, wheel.filename, sha256)):
            return table
        table = _extract(wheel, sha256, progress)
    if kept:
        _store(kept, table)
    return table


def _is_library(path: str) -> bool:
    name = PurePosixPath(path).name
    return name.endswith(".so") or ".so." in name


def _extract(
    wheel: Wheel, sha256: str, progress: Callable[[int], object] | None = None
) -> SymbolTable:
    libraries: dict[str, Library] = {}
    for info in wheel.members:
        if not _is_library(info.filename):
            continue
        with wheel.open(info) as (data, _):
            if bytes(data[:4]) == ELF_MAGIC:
                facts = read_elf(data)
                file = PurePosixPath(info.filename).name
                soname = facts.soname or file
                libraries[soname] = Library(info.filename, soname, facts.needed, facts.defined)
        if progress:
            progress(info.file_size)
    headers = wheel.metadata()
    return SymbolTable(
        wheel=wheel.filename,
        sha256=sha256,
        name=str(headers["Name"]),
        version=str(headers["Version"]),
        requires=tuple(str(item) for item in headers.get_all("Requires-Dist", [])),
        libraries=libraries,
    )


def _store(path: Path, table: SymbolTable) -> None:
    data = {
        "format": _FORMAT,
        "name": table.name,
        "version": table.version,
        "requires": table.requires,
        "libraries": [
            [library.file, library.soname, library.needed, sorted(library.symbols)]
            for library in table.libraries.values()
        ],
    }
    packed = zstandard.ZstdCompressor(level=6, write_checksum=True).compress(
        json.dumps(data, separators=(",", ":")).encode()
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(packed)
    temporary.replace(path)


def _load(path: Path, wheel: str, sha256: str) -> SymbolTable | None:
    """A kept table, or None: what is damaged or of another format is simply made again."""
    try:
        raw = zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=_MAX_TABLE)
        data = json.loads(raw)
        if data["format"] != _FORMAT:
            return None
        return SymbolTable(
            wheel=wheel,
            sha256=sha256,
            name=data["name"],
            version=data["version"],
            requires=tuple(data["requires"]),
            libraries={
                soname: Library(file, soname, tuple(needed), frozenset(symbols))
                for file, soname, needed, symbols in data["libraries"]
            },
        )
    except (OSError, zstandard.ZstdError, ValueError, KeyError, TypeError):
        return None
