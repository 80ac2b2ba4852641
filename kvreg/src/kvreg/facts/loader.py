"""Which files the dynamic loader would take, found without loading anything.

The order is that of glibc (``ld.so(8)``): what is loaded already under that name; ``DT_RPATH`` of
the file that needs it and of those that needed that file, unless it has a ``DT_RUNPATH``;
``LD_LIBRARY_PATH``; ``DT_RUNPATH``; the loader's cache; the default directories. A ``DT_RPATH``
therefore wins over ``LD_LIBRARY_PATH``, and ``LD_PRELOAD`` over everything.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvreg.facts.elf import Elf, ElfError
from kvreg.facts.ldcache import parse_cache

DEFAULT_DIRECTORIES = (
    "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A file, and why it is the one: `origin` in words, such as ``LD_LIBRARY_PATH``."""

    path: Path
    origin: str


@dataclass(frozen=True)
class Loaded:
    """A library in the simulated process. `by` is the chain of those that needed it."""

    name: str
    place: Place
    elf: Elf = field(compare=False)
    by: "Loaded | None"

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self.place.path


class Loader:
    """A process that has loaded nothing but its program; `load` adds files and what they need.

    `missing` tells which names were needed, and by whom, and not found.
    """

    def __init__(
        self,
        program: Path | None,
        environment: Mapping[str, str],
        *,
        root: Path = Path("/"),
    ) -> None:
        self.loaded: dict[str, Loaded] = {}
        self.missing: dict[str, str] = {}
        self._root = root
        self._files: dict[Path, Loaded] = {}
        self._waiting: list[Loaded] = []
        self._machine: str | None = None
        self._library_path = _split(environment.get("LD_LIBRARY_PATH", ""))
        try:
            self._cache = parse_cache((root / "etc/ld.so.cache").read_bytes())
        except OSError:
            self._cache = {}
        self.program: Loaded | None = None
        if program:
            self.program = self._open(program.resolve(), program.name, "the program", None)
        for name, origin in self._preloads(environment):
            self._need(name, self.program, origin)
        self._global = [item for item in self._waiting if item is not self.program]
        self._settle()

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all files."""
        for item in self._files.values():
            item.elf.close()

    @property
    def files(self) -> tuple[Loaded, ...]:
        """Every file in the process, in the order of loading: two may bear one name."""
        return tuple(self._files.values())

    def load(
        self, path: Path, origin: str = "imported", *, everybody: bool = False
    ) -> Loaded | None:
        """Load a file by its path, as an import does, and all that it needs.

        `everybody`: what it exports is there for files that do not name it (``RTLD_GLOBAL``).
        None when it is no ELF file of this machine.
        """
        item = self._open(path.absolute(), path.name, origin, self.program)
        self._settle()
        if item is not None and everybody:
            self._global.append(item)
        return item

    def find(self, name: str, by: Loaded | None = None) -> Place | None:
        """The file that a name means to the process as it is."""
        if name in self.loaded:
            return self.loaded[name].place
        return next((place for place in self.candidates(name, by) if self._fits(place.path)), None)

    def candidates(self, name: str, by: Loaded | None = None) -> Iterator[Place]:
        """All existing files of that name where the loader looks, first the one that it takes."""
        seen = set()
        for place in self._search(name, by or self.program):
            if place.path.is_file() and (resolved := place.path.resolve()) not in seen:
                seen.add(resolved)
                yield place

    def scope(self, item: Loaded) -> list[Loaded]:
        """The files among which the symbols of `item` are looked up, in the loader's order.

        The program's, those that were loaded for everybody, and what `item` itself needs.
        """
        first = [self.program] if self.program else []
        return list(dict.fromkeys(self._closure([*first, *self._global, item])))

    def _closure(self, items: list[Loaded]) -> Iterator[Loaded]:
        waiting, seen = list(items), set()
        while waiting:
            item = waiting.pop(0)
            if item.path not in seen:
                seen.add(item.path)
                yield item
                waiting += [self.loaded[name] for name in item.elf.needed if name in self.loaded]

    def _search(self, name: str, by: Loaded | None) -> Iterator[Place]:
        if "/" in name:
            yield Place(Path(name), "named by its path")
            return
        if by is None or not by.elf.runpath:
            for item in _chain(by):
                for folder in item.elf.rpath if not item.elf.runpath else ():
                    yield Place(_expand(folder, item.path) / name, f"RPATH of {item.path.name}")
        for folder in self._library_path:
            yield Place(Path(folder) / name, "LD_LIBRARY_PATH")
        for folder in by.elf.runpath if by else ():
            yield Place(_expand(folder, by.path) / name, f"RUNPATH of {by.path.name}")
        for path in self._cache.get(name, ()):
            yield Place(self._root / path.lstrip("/"), "ld.so.cache")
        for folder in DEFAULT_DIRECTORIES:
            yield Place(self._root / folder.lstrip("/") / name, "default directory")

    def _need(self, name: str, by: Loaded | None, origin: str | None = None) -> None:
        if name in self.loaded:
            return
        for place in self.candidates(name, by):
            if self._open(place.path, name, origin or place.origin, by) is not None:
                return
        self.missing.setdefault(name, str(by.path) if by else "")

    def _open(self, path: Path, name: str, origin: str, by: Loaded | None) -> Loaded | None:
        real = path.resolve()
        if real in self._files:
            self.loaded.setdefault(name, self._files[real])
            return self._files[real]
        try:
            elf = Elf(real)
        except (ElfError, OSError):
            return None
        if self._machine not in (None, elf.machine):
            elf.close()
            return None
        self._machine = elf.machine
        # The search path knows the file by the name under which it was found, not by its target.
        item = Loaded(name, Place(path, origin), elf, by)
        self._files[real] = item
        for known in {name, elf.soname or name}:
            self.loaded.setdefault(known, item)
        self._waiting.append(item)
        return item

    def _settle(self) -> None:
        """Load what the new files need: breadth first, as the loader does."""
        while self._waiting:
            item = self._waiting.pop(0)
            for name in item.elf.needed:
                self._need(name, item)

    def _fits(self, path: Path) -> bool:
        try:
            with Elf(path) as elf:
                return self._machine in (None, elf.machine)
        except (ElfError, OSError):
            return False

    def _preloads(self, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        for name in re.split(r"[ :]+", environment.get("LD_PRELOAD", "")):
            if name:
                yield name, "LD_PRELOAD"
        try:
            text = (self._root / "etc/ld.so.preload").read_text("utf-8", "replace")
        except OSError:
            return
        for name in text.split():
            yield name, "/etc/ld.so.preload"


def _chain(by: Loaded | None) -> Iterator[Loaded]:
    while by is not None:
        yield by
        by = by.by


def _expand(folder: str, path: Path) -> Path:
    origin = str(path.parent)
    return Path(folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin))


def _split(text: str) -> list[str]:
    # An empty entry is the current directory.
    return [part or "." for part in re.split("[:;]", text)] if text else []
