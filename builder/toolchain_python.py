"""CPython 3.12 for the toolchain images: found on the machine and copied, or downloaded pinned.

Debian 12 and 13 have no 3.12. A build needs some 3.12, not one patch version of it: the profile's
modules either use the limited API or are compiled against 3.12's stable ABI tag ``cp312``, and
the audit checks what came out. Which one was taken is in the image's record.

The copy is made here; making it at home at ``/opt/python3.12`` is done in the base image by the
toolchain's ``python.sh``, with that image's tools and libraries, which also proves that it works.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.cache import InputCache, storage_errors
from builder.errors import BuildError
from builder.toolchain_definition import PYTHON_HOME, PythonPolicy
from kvreg.errors import NetworkError, NotFoundError, Problem

VARIABLE = "KVREG_PYTHON312"

_INSPECT = """
import json, platform, sys, sysconfig
print(json.dumps({
    "implementation": platform.python_implementation(), "version": platform.python_version(),
    "machine": platform.machine(), "prefix": sys.base_prefix, "build": sys.version,
    "gil": not sysconfig.get_config_var("Py_GIL_DISABLED"),
    "debug": bool(sysconfig.get_config_var("Py_DEBUG")),
    "standalone": bool(sysconfig.get_config_var("PYTHON_BUILD_STANDALONE")),
}))
"""
_LEFT_OUT = re.compile(
    r"""
    (.*/)?__pycache__ | site-packages/.+ | test | idlelib | turtledemo | tkinter
    | (.*/)?tests? | lib-dynload/_test.* | config-[^/]*/.*\.(a|o) | ensurepip/_bundled/setuptools.*
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class Candidate:
    """A CPython that was found. origin: where, as in the policy; portable: finds its own
    libraries wherever it lies (uv's builds do)."""

    origin: str
    executable: Path
    prefix: Path
    version: str
    build: str
    portable: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data, without places on this machine."""
        return {"origin": self.origin, "version": self.version, "build": self.build}


@dataclass(frozen=True)
class Rejection:
    """A CPython that does not do, or a place without one, and why."""

    origin: str
    where: str
    reason: str

    def as_problem(self) -> Problem:
        """For an error's list of what was tried."""
        return Problem(f"{self.origin}: {self.where}" if self.where else self.origin, self.reason)


def find_candidates(
    policy: PythonPolicy,
    cache: InputCache,
    environment: Mapping[str, str],
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Candidate | Rejection]:
    """Every CPython that may go into an image, best first, and what was passed over.

    The download (origin ``standalone``) is only tried when the caller asks for that element, so
    stop at the first one that works.
    """
    for origin in policy.origins:
        if origin == "standalone":
            try:
                executables = [install_standalone(policy, cache, say)]
            except NetworkError as error:
                version = f"CPython {policy.standalone_version}"
                yield Rejection(origin, version, f"{error.what}: {error.found}")
                continue
        else:
            executables = _executables(origin, environment)
        if not executables:
            yield Rejection(origin, "", "none there")
        for executable in executables:
            yield inspect(origin, executable)
        if origin == "environment" and executables:
            return  # who names one does not want another


def _executables(origin: str, environment: Mapping[str, str]) -> list[Path]:
    home = Path(environment.get("HOME", "/nonexistent"))
    if origin == "environment":
        named = environment.get(VARIABLE)
        return [Path(named)] if named else []
    if origin == "path":
        found = shutil.which("python3.12", path=environment.get("PATH", os.defpath))
        return [Path(found)] if found else []
    if origin == "pyenv":
        root = Path(environment.get("PYENV_ROOT") or home / ".pyenv")
        return _newest(root / "versions", "3.12.*/bin/python3.12")
    data = Path(environment.get("XDG_DATA_HOME") or home / ".local/share")
    root = Path(environment.get("UV_PYTHON_INSTALL_DIR") or data / "uv/python")
    return _newest(root, "cpython-3.12.*-linux-x86_64-gnu/bin/python3.12")


def _newest(root: Path, pattern: str) -> list[Path]:
    def number(path: Path) -> int:
        match = re.search(r"3\.12\.(\d+)", path.relative_to(root).as_posix())
        return int(match[1]) if match else -1

    return sorted((p for p in root.glob(pattern) if p.is_file()), key=number, reverse=True)


def inspect(origin: str, executable: Path) -> Candidate | Rejection:
    """Ask an interpreter what it is; a virtual environment answers for its base."""

    def reject(reason: str) -> Rejection:
        return Rejection(origin, str(executable), reason)

    try:
        done = subprocess.run(
            [str(executable), "-I", "-c", _INSPECT],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        facts = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return reject(f"does not run: {error}")
    if facts is None:
        complaint = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return reject(f"does not run: {complaint[0]}")
    prefix = Path(facts["prefix"])
    if facts["implementation"] != "CPython" or not facts["version"].startswith("3.12."):
        return reject(f"is {facts['implementation']} {facts['version']}, not CPython 3.12")
    if facts["machine"] != "x86_64" or not facts["gil"] or facts["debug"]:
        return reject("is not an ordinary x86-64 build (free-threaded, debug or another machine)")
    if prefix == Path("/usr"):
        return reject("is the distribution's own, spread over /usr: it cannot be copied")
    if not (prefix / "include/python3.12/Python.h").is_file():
        return reject("has no headers")
    if not list((prefix / "lib/python3.12/ensurepip/_bundled").glob("pip-*.whl")):
        return reject("has no ensurepip")
    portable = facts["standalone"] or origin in ("uv", "standalone")
    return Candidate(origin, executable, prefix, facts["version"], facts["build"], portable)


def none_works(rejections: list[Rejection]) -> NotFoundError:
    """The error for when every candidate was rejected."""
    return NotFoundError(
        "no CPython 3.12 can be put into the image",
        expected="CPython 3.12 for x86-64 with headers and ensurepip",
        problems=[r.as_problem() for r in rejections],
        remedy=f"install one (`uv python install 3.12`, or pyenv) or set {VARIABLE} to the "
        "python3.12 of one",
    )


def copy_python(candidate: Candidate, target: Path) -> None:
    """Copy interpreter, library and headers to `target`, as they will lie in PYTHON_HOME.

    Site packages, tests and graphical parts stay behind. Paths that name the old place, in
    scripts and build configuration, name the new one afterwards. Raises StorageError.
    """
    prefix = candidate.prefix
    with storage_errors("copy CPython to", target):
        shutil.rmtree(target, ignore_errors=True)
        for folder in ("bin", "lib", "lib/pkgconfig"):
            (target / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy2((prefix / "bin/python3.12").resolve(), target / "bin/python3.12")
        for link in ("python", "python3"):
            (target / "bin" / link).symlink_to("python3.12")
        if (prefix / "bin/python3.12-config").is_file():
            shutil.copy2(prefix / "bin/python3.12-config", target / "bin/python3.12-config")
            (target / "bin/python3-config").symlink_to("python3.12-config")
        for pattern in ("lib/libpython3.12.so*", "lib/libpython3.so", "lib/pkgconfig/python*3.12*"):
            for path in sorted(prefix.glob(pattern)):
                shutil.copy2(path, target / path.relative_to(prefix), follow_symlinks=False)
        library = prefix / "lib/python3.12"
        shutil.copytree(library, target / "lib/python3.12", symlinks=True, ignore=_ignore(library))
        (target / "lib/python3.12/site-packages").mkdir(exist_ok=True)
        shutil.copytree(prefix / "include/python3.12", target / "include/python3.12")
        _rename_prefix(target, str(prefix))


def _ignore(library: Path) -> Callable[[str, list[str]], set[str]]:
    def ignore(folder: str, names: list[str]) -> set[str]:
        below = Path(folder).relative_to(library).as_posix()
        paths = {name: name if below == "." else f"{below}/{name}" for name in names}
        return {name for name, path in paths.items() if _LEFT_OUT.fullmatch(path)}

    return ignore


def _rename_prefix(target: Path, prefix: str) -> None:
    old, new = prefix.encode(), PYTHON_HOME.encode()
    # A prefix that ends here, so that /opt/python is not found in /opt/python-build.
    pattern = re.compile(re.escape(old) + rb"(?![\w.-])")
    for path in target.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        data = path.read_bytes()
        if old in data and b"\0" not in data:
            path.write_bytes(pattern.sub(new, data))


def install_standalone(
    policy: PythonPolicy, cache: InputCache, say: Callable[[str], None] = lambda text: None
) -> Path:
    """Download the pinned standalone build with the pinned uv; returns its executable.

    uv knows the digest of every build that it can download, so its version pins the bytes.
    Raises NetworkError when either cannot be had, BuildError when uv installs something else.
    """
    root = cache.folder("python") / f"{policy.standalone_version}-uv{policy.uv_version}"
    pattern = f"cpython-{policy.standalone_version}-*/bin/python3.12"
    if not list(root.glob(pattern)):
        uv = _pinned_uv(policy, cache.folder("uv") / policy.uv_version, say)
        say(f"downloading CPython {policy.standalone_version} with uv {policy.uv_version}")
        options = ["--install-dir", str(root), "--no-bin", "--no-config"]
        _download(
            [str(uv), "python", "install", policy.standalone_version, *options],
            f"the standalone build of CPython {policy.standalone_version}",
        )
    found = sorted(root.glob(pattern))
    if not found:
        raise BuildError(
            "uv installed no CPython where it was told to",
            expected=pattern,
            found=", ".join(p.name for p in root.iterdir()) or "nothing",
        )
    return found[0]


def _pinned_uv(policy: PythonPolicy, folder: Path, say: Callable[[str], None]) -> Path:
    uv = folder / "bin/uv"
    if not uv.is_file():
        say(f"installing uv {policy.uv_version}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        _download(
            [*pip, "--target", str(folder), f"uv=={policy.uv_version}"], f"uv {policy.uv_version}"
        )
    return uv


def _download(command: list[str], what: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        lines = [ln.strip() for ln in done.stderr.splitlines() if ln.strip()]
        raise NetworkError(
            f"{what} cannot be downloaded",
            found=lines[-1] if lines else f"exit status {done.returncode}",
            remedy=f"set {VARIABLE} to the python3.12 of a CPython that is already there",
        )
