"""Of what make a wheel is: read from the wheel, so that the table claims nothing."""

import csv
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

from kvreg.wheel.archive import WheelArchive
from kvreg.wheel.tags import parse_wheel_name
from tests.equivalence.comparison import dist_info

_LARGE = 30_000_000


@dataclass(frozen=True)
class Make:
    """What is special about a wheel, in words; `size` of the file in bytes, `members` in it."""

    words: tuple[str, ...]
    size: int
    members: int


def make_of(wheel: Path) -> Make:
    """Look at everything that tools treat in different ways."""
    name = parse_wheel_name(wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        infos = archive.infolist()
        names = [info.filename for info in infos]
        info = dist_info(names)
        record = archive.read(f"{info}/RECORD")
        points = f"{info}/entry_points.txt"
        text = archive.read(points).decode() if points in names else ""
    words = [_kind(wheel.name), *_data(names), *_scripts(text), *_packages(names)]
    executables = sum(1 for item in infos if item.external_attr >> 16 & 0o111 and item.file_size)
    if 0 < executables < len(infos) / 2:
        words.append(f"executables: {executables}")
    words += _record_words(record, names, info)
    if any(item.is_dir() for item in infos):
        words.append("directories as members")
    if any(re.search(r"[^\x20-\x7e]|[ ,]", item) for item in names):
        words.append("names with spaces, commas or other letters")
    if info.removesuffix(".dist-info").rpartition("-")[0] != name.name.replace("-", "_"):
        words.append(f"dist-info as `{info}`")
    if wheel.stat().st_size > _LARGE:
        words.append("large")
    return Make(tuple(words), wheel.stat().st_size, len(infos))


def declared_size(wheel: Path) -> int:
    """What a wheel unpacks to, in bytes."""
    with WheelArchive(wheel, parse_wheel_name(wheel.name)) as archive:
        return archive.unpacked_size


def _kind(filename: str) -> str:
    python, abi, platform = filename.removesuffix(".whl").split("-")[-3:]
    if platform == "any":
        return "pure"
    if abi == "none":
        return "binary, any Python"
    return abi if abi == "abi3" else python


def _data(names: list[str]) -> list[str]:
    found = {match[1] for item in names if (match := re.match(r"[^/]+\.data/([^/]+)/.", item))}
    return [f".data/{part}" for part in sorted(found)]


def _scripts(entry_points: str) -> list[str]:
    words = []
    for group in ("console_scripts", "gui_scripts"):
        section = re.search(rf"(?ms)^\[{group}\]\s*$(.*?)(?=^\[|\Z)", entry_points)
        if section and (count := len(re.findall(r"(?m)^[^#;\s].*=", section[1]))):
            words.append(f"{group}: {count}")
    return words


def _packages(names: list[str]) -> list[str]:
    tops = {item.partition("/")[0] for item in names if "/" in item}
    packages = {top for top in tops if not top.endswith((".dist-info", ".data", ".libs"))}
    bare = [top for top in packages if f"{top}/__init__.py" not in names]
    words = []
    if [top for top in bare if any(re.match(rf"{re.escape(top)}/.*\.py$", i) for i in names)]:
        words.append("namespace package")
    if any(item.endswith(".pth") and "/" not in item for item in names):
        words.append(".pth file")
    if any("/" not in item and item.endswith(".py") for item in names):
        words.append("top-level module")
    if any(top.endswith(".libs") for top in tops):
        words.append("bundled libraries")
    return words


def _record_words(record: bytes, names: list[str], info: str) -> list[str]:
    rows = [row for row in csv.reader(record.decode("utf-8").splitlines()) if row]
    words = []
    if b"\r\n" in record:
        words.append("RECORD with CRLF")
    if any(row[1] and not row[1].startswith("sha256=") for row in rows):
        words.append("RECORD with another hash")
    if any(row[1] and not row[2] for row in rows):
        words.append("RECORD without sizes")
    own = [
        item for item in ("INSTALLER", "REQUESTED", "direct_url.json") if f"{info}/{item}" in names
    ]
    words += [f"brings {item}" for item in own]
    if f"{info}/RECORD.jws" in names:
        words.append("RECORD.jws")
    return words
