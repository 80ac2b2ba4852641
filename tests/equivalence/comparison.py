"""One wheel, staged by us and installed by pip, compared file by file.

pip is asked for ``install --target --no-deps --no-compile``. Every difference has a kind; those of
`ON_PURPOSE` are meant, any other is a fault of ours.
"""

import csv
import os
import re
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvreg.errors import KvregError
from kvreg.wheel.archive import WheelArchive
from kvreg.wheel.plan import plan_wheel
from kvreg.wheel.staging import stage
from kvreg.wheel.tags import WheelName, parse_wheel_name

ON_PURPOSE = {
    "installer": "`INSTALLER` says `kvreg`",
    "record": "RECORD names scripts, headers and data by where they lie in the directory; pip by"
    " paths that lead out of it, from where they lay before it moved them",
    "headers": "headers lie in `include/python/NAME`; pip's folder bears the version of the Python"
    " that ran pip",
    "script": "a script of an entry point has the text of one certain pip, whichever pip is there",
    "executable": "a script of the wheel is executable also where the archive does not say so",
    "kept": "a file below `lib` of the wheel's data directory, which pip loses, is kept",
}
"""The kinds of differences that are meant, and what each is."""


@dataclass(frozen=True)
class File:
    """Bytes and mode of a regular file."""

    data: bytes
    mode: int


@dataclass(frozen=True)
class Difference:
    """A file that differs: `kind` is one of `ON_PURPOSE`, or says what is wrong."""

    kind: str
    path: str

    @property
    def meant(self) -> bool:
        """Whether it is one that we want."""
        return self.kind in ON_PURPOSE


@dataclass(frozen=True)
class Comparison:
    """What became of one wheel: files and bytes that we staged, and every difference.

    `refused` is why we stage it not at all, where that is so.
    """

    wheel: str
    files: int
    bytes: int
    differences: tuple[Difference, ...]
    refused: str | None = None

    @property
    def faults(self) -> tuple[Difference, ...]:
        """Differences that nobody wants."""
        return tuple(item for item in self.differences if not item.meant)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of differences that are meant, each once."""
        return tuple(sorted({item.kind for item in self.differences if item.meant}))


def compare(wheel: Path, folder: Path, pip: Path) -> Comparison:
    """Stage and install `wheel` into new directories of `folder`, and compare these.

    `pip` is a pip's wheel, which runs as it is.
    """
    name = parse_wheel_name(wheel.name)
    ours, theirs = folder / "ours", folder / "theirs"
    try:
        stage_wheel(wheel, name, ours)
    except KvregError as error:
        return Comparison(wheel.name, 0, 0, (), f"{error.what} ({error.found})")
    pip_install(wheel, name, theirs, pip)
    mine, pips = read_tree(ours), read_tree(theirs)
    size = sum(len(file.data) for file in mine.values())
    return Comparison(wheel.name, len(mine), size, tuple(differences(wheel, mine, pips)))


def stage_wheel(wheel: Path, name: WheelName, target: Path) -> None:
    """Our way."""
    target.mkdir(parents=True)
    with WheelArchive(wheel, name) as archive:
        stage(plan_wheel(archive, requested=True), target, sys.executable)


def pip_install(wheel: Path, name: WheelName, target: Path, pip: Path) -> None:
    """pip's way: asked for by name, so that it writes what it writes of an index's wheel."""
    command = [sys.executable, str(pip / "pip"), "--isolated", "install", "--quiet"]
    command += ["--no-index", "--no-deps", "--no-compile", "--disable-pip-version-check"]
    command += ["--no-cache-dir", "--ignore-requires-python", "--target", str(target)]
    command += ["--find-links", str(wheel.parent), f"{name.name}=={name.version}"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"pip failed for {wheel.name}: {result.stderr}")


def read_tree(root: Path) -> dict[str, File]:
    """Every file below a directory, by path."""
    files = {}
    for parent, folders, names in os.walk(root):
        for item in (*folders, *names):
            path = Path(parent, item)
            if path.is_symlink():
                raise RuntimeError(f"{path} is a link")
        for item in names:
            path = Path(parent, item)
            mode = stat.S_IMODE(path.stat().st_mode)
            files[path.relative_to(root).as_posix()] = File(path.read_bytes(), mode)
    return files


def differences(
    wheel: Path, mine: Mapping[str, File], pips: Mapping[str, File]
) -> Iterator[Difference]:
    """What differs between the two trees, each difference with its kind."""
    contents = Contents.of(wheel)
    theirs: dict[str, File] = {}
    for path, file in pips.items():
        inward = headers_inward(path)
        if inward != path:
            yield Difference("headers", path)
        theirs[inward] = file
    for path in sorted(mine.keys() | theirs.keys()):
        if path not in theirs:
            kept = path.startswith("lib/") and path in contents.data
            yield Difference("kept" if kept else "not in pip's tree", path)
        elif path not in mine:
            yield Difference("only in pip's tree", path)
        else:
            yield from _file_differences(path, mine[path], theirs[path], contents)


@dataclass(frozen=True)
class Contents:
    """What the wheel says of some files: its dist-info, scripts, and where its data goes."""

    dist_info: str
    scripts: frozenset[str]
    entry_points: frozenset[str]
    data: frozenset[str]

    @classmethod
    def of(cls, wheel: Path) -> "Contents":
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            info = dist_info(names)
            prefix = info.removesuffix(".dist-info") + ".data/"
            inside = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
            points = f"{info}/entry_points.txt"
            text = archive.read(points).decode() if points in names else ""
        return cls(
            info,
            frozenset(f"bin/{name[8:]}" for name in inside if name.startswith("scripts/")),
            frozenset(f"bin/{name}" for name in re.findall(r"(?m)^\s*([\w.-]+)\s*=", text)),
            frozenset(name[5:] for name in inside if name.startswith("data/")),
        )


def dist_info(names: Sequence[str]) -> str:
    """The wheel's own dist-info directory; packages that it vendors may have some, too."""
    found = [name for name in names if re.fullmatch(r"[^/]+\.dist-info/RECORD", name)]
    return found[0].removesuffix("/RECORD")


def _file_differences(
    path: str, mine: File, pips: File, contents: Contents
) -> Iterator[Difference]:
    if mine.mode != pips.mode:
        wanted = path in contents.scripts and mine.mode == pips.mode | 0o111
        yield Difference("executable" if wanted else f"mode {mine.mode:o}, {pips.mode:o}", path)
    if mine.data == pips.data:
        return
    if path == f"{contents.dist_info}/INSTALLER":
        ok = (mine.data, pips.data) == (b"kvreg\n", b"pip\n")
        yield Difference("installer" if ok else "another INSTALLER", path)
    elif path == f"{contents.dist_info}/RECORD":
        yield from _record_differences(path, mine.data, pips.data, contents)
    elif path in contents.entry_points and calls(mine.data) == calls(pips.data) is not None:
        yield Difference("script", path)
    else:
        yield Difference("other bytes", path)


def _record_differences(
    path: str, mine: bytes, pips: bytes, contents: Contents
) -> Iterator[Difference]:
    """RECORDs are the same when pip's paths are turned inward; rows of files that differ on
    purpose have another hash."""
    other = {f"{contents.dist_info}/INSTALLER", *contents.entry_points}
    kept = {name for name in contents.data if name.startswith("lib/")}

    def rows(raw: bytes) -> set[tuple[str, ...]]:
        read = (tuple(row) for row in csv.reader(raw.decode().splitlines()) if row)
        return {
            (inward, *row[1:]) if (inward := record_inward(row[0])) not in other else (inward,)
            for row in read
            if record_inward(row[0]) not in kept
        }

    for row in sorted(rows(mine) ^ rows(pips)):
        yield Difference(f"RECORD: {','.join(row)}", path)
    yield Difference("record", path)


def record_inward(path: str) -> str:
    """A path of pip's RECORD as it is in the directory: pip moves the files after it has written
    RECORD, and leaves that as it was.

    >>> record_inward("../../bin/tool"), record_inward("pkg/module.py")
    ('bin/tool', 'pkg/module.py')
    """
    return headers_inward(re.sub(r"^(\.\./)+", "", path))


def headers_inward(path: str) -> str:
    """Where we put a header that pip put below the version of its Python.

    >>> headers_inward("include/site/python3.12/demo/demo.h")
    'include/python/demo/demo.h'
    """
    return re.sub(r"^include/site/python\d+\.\d+/", "include/python/", path)


def calls(script: bytes) -> tuple[str, str, str] | None:
    """Interpreter line, import and call of an entry point's script, whichever pip wrote it."""
    text = script.decode("utf-8", "replace")
    match = re.search(r"^from (\S+) import (\S+)$.*?sys\.exit\((\S+)\(\)\)", text, re.M | re.S)
    if match is None:
        return None
    first = text[: text.index("import")].partition("# -*-")[0].strip()
    return first, f"{match[1]} {match[2]}", match[3]
