"""Compares every wheel of ``wheels.lock`` and writes the table of ``docs/equivalence.md``.

python -m tests.equivalence                     fetch by hash, compare, write the table
python -m tests.equivalence --lock NAME...      lock the newest wheels of these names anew
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename

from builder.cache import InputCache
from builder.fetch import fetch
from builder.index import PackageIndex, target_tags
from builder.inputs import Input, read_lock, write_lock
from tests.equivalence.comparison import compare
from tests.equivalence.makes import make_of
from tests.equivalence.table import DOCUMENT, Row, with_table

LOCK = Path(__file__).with_name("wheels.lock")


def lock(names: Iterable[str]) -> None:
    """Write the lock with the newest release of each name that has a wheel for the profiles' host,
    and pip itself."""
    index, tags, inputs = PackageIndex(), target_tags(), []
    for name in sorted({canonicalize_name(name) for name in (*names, "pip")}):
        wheels = [file for file in index.files(name) if file.filename.endswith(".whl")]
        usable = [
            version
            for file in wheels
            for _, version, _, offered in [parse_wheel_filename(file.filename)]
            if not version.is_prerelease and not offered.isdisjoint(tags)
        ]
        version = str(max(usable))
        file = index.best_wheel(name, version, tags)
        size = index.size(file)
        inputs.append(Input(name, version, "wheel", file.filename, size, file.sha256))
    header = (
        "Wheels that are staged and installed with pip, and compared; pip is one of them.\n"
        "Written by: python -m tests.equivalence --lock NAME..."
    )
    write_lock(LOCK, inputs, header)


def fetched() -> dict[str, Path]:
    """The locked wheels by file name, in the input cache."""
    cache, inputs = InputCache(), read_lock(LOCK)
    fetch(inputs, cache, PackageIndex(), lambda count: None)
    return {item.filename: cache.path(item.sha256) for item in inputs}


def rows(folder: Path) -> Iterable[Row]:
    """Compare every locked wheel, each in a directory of its own below `folder`."""
    files = fetched()
    pip = place(files, next(name for name in files if name.startswith("pip-")), folder / "pip")
    for filename in sorted(files):
        if filename == pip.name:
            continue
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            wheel = place(files, filename, Path(temporary) / "wheel")
            yield Row(make_of(wheel), compare(wheel, Path(temporary), pip))


def place(files: dict[str, Path], filename: str, folder: Path) -> Path:
    """A wheel under its own name."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / filename
    target.symlink_to(files[filename])
    return target


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lock", nargs="+", metavar="NAME")
    names = parser.parse_args().lock
    if names:
        lock(names)
        return 0
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="equivalence-") as folder:
        for row in rows(Path(folder)):
            found.append(row)
            print(row.line(), file=sys.stderr, flush=True)
    pip = next(item for item in read_lock(LOCK) if item.name == "pip")
    DOCUMENT.write_text(with_table(DOCUMENT.read_text("utf-8"), found, pip.version), "utf-8")
    return 1 if any(row.comparison.faults for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
