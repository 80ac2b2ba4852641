"""What a host has installed, from the output of ``pip freeze``: names and versions, no hosts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from kvreg.errors import NotFoundError, UsageError

FILE = "host-freeze.txt"
"""Name of the list in a profile's folder."""

_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*===?\s*([^\s;]+)")
_URL = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*@\s*(\S+)")
_SDIST = re.compile(r"-([0-9][^/]*?)\.(?:tar\.gz|zip)$")


def parse_freeze(text: str) -> dict[str, str]:
    """Canonical name -> version of everything that the list names a version of.

    Packages that were installed from an address count with the version in the file's name; those
    whose version cannot be known (a git commit, an editable folder) are left out.

    >>> parse_freeze("a==1.0\\nB_c @ file:///x/b_c-2.1-py3-none-any.whl\\nd @ git+file:///d@abc")
    {'a': '1.0', 'b-c': '2.1'}
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        if pin := _PIN.match(line):
            name, version = pin[1], pin[2]
        elif url := _URL.match(line):
            name, version = url[1], _version_in(url[2])
        else:
            continue
        try:
            Version(version)
        except InvalidVersion:
            continue
        found[canonicalize_name(name)] = version
    return found


def read_freeze(path: Path) -> dict[str, str]:
    """Read such a list. Raises NotFoundError, and UsageError when it names no package."""
    try:
        found = parse_freeze(path.read_text("utf-8"))
    except FileNotFoundError:
        raise NotFoundError(
            f"there is no list of the host's packages {path}",
            remedy="on the host: python -m pip freeze > FILE, then --host-freeze FILE",
        ) from None
    if not found:
        raise UsageError(f"{path} is not the output of pip freeze", expected="lines NAME==VERSION")
    return found


def freeze_text(host: Mapping[str, str]) -> str:
    """The list as it is kept beside a profile: sorted, one ``name==version`` a line."""
    return "".join(f"{name}=={version}\n" for name, version in sorted(host.items()))


def _version_in(url: str) -> str:
    path = url.partition("#")[0]
    filename = path.rpartition("/")[2]
    try:
        return str(parse_wheel_filename(filename)[1])
    except (InvalidWheelFilename, InvalidVersion):
        match = _SDIST.search(filename)
        return match[1] if match else ""
