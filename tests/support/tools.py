"""Tools that others wrote, at the newest versions that a Debian suite offers, unpacked privately.

`tools.lock` names the packages (see `tests.support.debian`); each program runs with the libraries
that it was built for. Without a mirror the machine's own program has to do.

    python -m tests.support.tools          fetch them all, and show their versions
    python -m tests.support.tools --lock   write the lock anew, from what the suite has now
"""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.apt import read_package_lock, write_package_lock
from kvreg.errors import KvregError, NotFoundError
from tests.support.debian import newest, suite_apt, unpacked

SUITE = "sid"
LOCK = Path(__file__).with_name("tools.lock")

_LOADER = "ld-linux-x86-64.so.2"
_LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")


@dataclass(frozen=True)
class _Recipe:
    """What a tool consists of. `version` are the arguments that make it tell its version."""

    packages: tuple[str, ...]
    version: tuple[str, ...] = ("version",)


_RECIPES = {
    "oras": _Recipe(("oras",)),
    "skopeo": _Recipe(
        ("skopeo", "libgpgme45", "libassuan9", "libgpg-error0", "libsqlite3-0", "libc6"),
        ("--version",),
    ),
}


@dataclass(frozen=True)
class Tool:
    """A program that can be run: `command` is what its arguments are added to."""

    name: str
    version: str
    command: tuple[str, ...]
    origin: str

    def run(self, *arguments: str, timeout: float = 60, **options: object) -> bytes:
        """Its standard output. What it says when it fails is in the error."""
        done = subprocess.run(
            [*self.command, *arguments],
            capture_output=True,
            timeout=timeout,
            **options,  # type: ignore[call-overload]
        )
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace")[-2000:]
            raise AssertionError(f"{self.name} {' '.join(arguments)} failed:\n{said}")
        return bytes(done.stdout)


@functools.cache
def find_tool(name: str) -> Tool:
    """A tool of `_RECIPES`, fetched when the cache lacks it. `KvregError` when it cannot be had."""
    try:
        return _fetched(name)
    except KvregError as error:
        program = shutil.which(name)
        if program is None:
            raise NotFoundError(
                f"the tests need {name}, and it could not be fetched",
                expected=f"a mirror of Debian {SUITE}, or {name} on this machine",
                found=str(error),
                remedy=f"try: python -m tests.support.tools; or: apt-get install {name}",
            ) from error
        print(f"note: {name} is the machine's own: {error}", file=sys.stderr)
        return _tool(name, (program,), "this machine")


@pytest.fixture(scope="session")
def oras() -> Iterator[Tool]:
    """The command line of the ORAS project."""
    yield _needed("oras")


@pytest.fixture(scope="session")
def skopeo() -> Iterator[Tool]:
    """skopeo, without a policy for signatures."""
    yield _needed("skopeo")


def _needed(name: str) -> Tool:
    try:
        return find_tool(name)
    except KvregError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


def _fetched(name: str) -> Tool:
    wanted = [item for item in read_package_lock(LOCK) if item.name in _RECIPES[name].packages]
    found = unpacked(name, SUITE, wanted)
    origin = f"Debian {SUITE}, {'newer than locked' if found.newer else 'locked'}"
    return _tool(name, _command(found.folder, name), origin)


def _command(folder: Path, name: str) -> tuple[str, ...]:
    program = str(folder / "usr/bin" / name)
    libraries = [path for part in _LIBRARIES if (path := folder / part).is_dir()]
    loader = next((path / _LOADER for path in libraries if (path / _LOADER).exists()), None)
    if loader is None:
        return (program,)
    return (str(loader), "--library-path", ":".join(map(str, libraries)), program)


def _tool(name: str, command: tuple[str, ...], origin: str) -> Tool:
    try:
        asked = [*command, *_RECIPES[name].version]
        said = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NotFoundError(
            f"{name} was fetched and does not run",
            found=f"{error}: {getattr(error, 'stderr', '')}",
            remedy="its libraries may have other names now: see _RECIPES in tests/support/tools.py",
        ) from error
    words = said.split()
    version = next((word for word in words if word[:1].isdigit() and "." in word), "unknown")
    return Tool(name, version, command, origin)


def main(arguments: list[str]) -> None:
    """See the module's text."""
    if arguments == ["--lock"]:
        apt = suite_apt(SUITE)
        apt.update()
        names = dict.fromkeys(name for item in _RECIPES.values() for name in item.packages)
        header = f"Tools that the tests run, and their libraries: packages of Debian {SUITE}.\n"
        header += "Written by `python -m tests.support.tools --lock`."
        write_package_lock(LOCK, newest(apt, list(names)), header)
    elif arguments:
        sys.exit(__doc__)
    for name in _RECIPES:
        tool = find_tool(name)
        print(f"{tool.name:<8} {tool.version:<12} {tool.origin}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KvregError as error:
        sys.exit(str(error))
