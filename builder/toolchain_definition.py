"""What a toolchain is made of: ``dockerfiles/<name>/toolchain.toml`` as validated data."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.layout import find_checkout
from kvreg.errors import ContractError, NotFoundError, Problem

KINDS = ("debootstrap", "pull")
PYTHON_ORIGINS = ("environment", "path", "pyenv", "uv", "standalone")
PYTHON_HOME = "/opt/python3.12"
CUDA_HOME = "/usr/local/cuda"

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*\Z")
_VERSION = re.compile(r"\d+(\.\d+)+\Z")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]+\Z")
_PIN = re.compile(r"[a-z0-9][a-z0-9-]+==\d+(\.\d+)+\Z")
_SONAME = re.compile(r"lib[A-Za-z0-9-]+\.so\.\d+\Z")
_HEADER = re.compile(r"[A-Za-z0-9_]+\.h\Z")


@dataclass(frozen=True)
class Rootfs:
    """A Debian root file system. include: packages beside debootstrap's minbase set."""

    suite: str
    include: tuple[str, ...]
    lock: str


@dataclass(frozen=True)
class CudaPackages:
    """Where the CUDA tree comes from: packages of another Debian suite, locked by sha256."""

    suite: str
    components: tuple[str, ...]
    names: tuple[str, ...]
    lock: str


@dataclass(frozen=True)
class Stub:
    """A library that is only linked against: its soname, and the headers that declare it."""

    soname: str
    headers: tuple[str, ...]


@dataclass(frozen=True)
class CudaWheels:
    """Where the CUDA tree comes from: wheels of the package index, locked by sha256.

    whole: requirements of wheels that are taken whole. headers: of those whose headers alone are,
    read by range. stubs: what stands for the libraries of the driver and of the latter.
    """

    whole: tuple[str, ...]
    headers: tuple[str, ...]
    stubs: tuple[Stub, ...]
    lock: str


@dataclass(frozen=True)
class BaseImage:
    """An image of a registry. digests: all that the same image is known by."""

    repository: str
    tag: str
    digests: tuple[str, ...]


@dataclass(frozen=True)
class PythonPolicy:
    """Which CPython goes into the image.

    origins: where to look, best first (see `builder.toolchain_python`). standalone_version and
    uv_version pin the build that uv downloads when nothing else is found.
    """

    version: str
    origins: tuple[str, ...]
    standalone_version: str
    uv_version: str


@dataclass(frozen=True)
class Toolchain:
    """A toolchain's definition. cuda: the version of its nvcc; glibc: of its C library."""

    name: str
    kind: str
    summary: str
    cuda: str
    glibc: str
    source_date_epoch: int
    python: PythonPolicy
    folder: Path
    rootfs: Rootfs | None = None
    cuda_packages: CudaPackages | None = None
    cuda_wheels: CudaWheels | None = None
    base_image: BaseImage | None = None

    @property
    def tag(self) -> str:
        """The name of its image in the engine."""
        return f"kvreg-toolchain:{self.name}"

    def files(self) -> dict[str, str]:
        """sha256 (hex) of every file of the definition by name."""
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.folder.iterdir())
            if path.is_file() and not path.name.startswith(".")
        }

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        result: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind,
            "summary": self.summary,
            "cuda": self.cuda,
            "glibc": self.glibc,
            "python": {
                "version": self.python.version,
                "origins": list(self.python.origins),
                "standalone_version": self.python.standalone_version,
                "uv_version": self.python.uv_version,
            },
            "files": self.files(),
        }
        if self.rootfs is not None:
            result["rootfs"] = {"suite": self.rootfs.suite, "include": list(self.rootfs.include)}
        if self.cuda_packages is not None:
            result["cuda_packages"] = {
                "suite": self.cuda_packages.suite,
                "names": list(self.cuda_packages.names),
            }
        if self.cuda_wheels is not None:
            result["cuda_wheels"] = {
                "whole": list(self.cuda_wheels.whole),
                "headers": list(self.cuda_wheels.headers),
                "stubs": {stub.soname: list(stub.headers) for stub in self.cuda_wheels.stubs},
            }
        if self.base_image is not None:
            result["base_image"] = {
                "name": f"{self.base_image.repository}:{self.base_image.tag}",
                "digests": list(self.base_image.digests),
            }
        return result


def toolchain_names(root: Path | None = None) -> tuple[str, ...]:
    """The names of all toolchains in `root` (default: the checkout's), sorted."""
    root = find_checkout().dockerfiles if root is None else root
    return tuple(sorted(p.parent.name for p in root.glob("*/toolchain.toml")))


def load_toolchain(name: str, root: Path | None = None) -> Toolchain:
    """Read and validate a definition in `root` (default: the checkout's ``dockerfiles``).

    Raises NotFoundError for an unknown name, ContractError that lists every fault.
    """
    root = find_checkout().dockerfiles if root is None else root
    path = root / name / "toolchain.toml"
    if not _NAME.match(name) or not path.is_file():
        raise NotFoundError(
            f"there is no toolchain {name!r}",
            expected="one of: " + ", ".join(toolchain_names(root)),
            remedy="see: builder toolchain list",
        )
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ContractError(f"{name}/toolchain.toml is not TOML", found=str(error)) from error
    table = _Table(data, "")
    toolchain = _toolchain(table, path.parent)
    if table.problems:
        raise ContractError(
            f"{name}/toolchain.toml is not a valid definition", problems=table.problems
        )
    return toolchain


class _Table:
    """Reads one TOML table and collects what is wrong with it; `where` is its place."""

    def __init__(self, data: Any, where: str, problems: list[Problem] | None = None) -> None:
        self.problems: list[Problem] = [] if problems is None else problems
        self.where = where
        self.data: dict[str, Any] = data if isinstance(data, dict) else {}
        if not isinstance(data, dict):
            self._fault("", "not a table", "a table", data)

    def _fault(self, key: str, what: str, expected: str, found: Any) -> None:
        place = ".".join(part for part in (self.where, key) if part)
        self.problems.append(Problem(place, what, expected, repr(found)))

    def text(self, key: str, pattern: re.Pattern[str] | None = None, like: str = "text") -> str:
        value = self.data.pop(key, None)
        if not isinstance(value, str) or not value or (pattern and not pattern.match(value)):
            self._fault(key, "missing" if value is None else "invalid", like, value)
            return ""
        return value

    def number(self, key: str) -> int:
        value = self.data.pop(key, None)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self._fault(key, "missing" if value is None else "invalid", "a whole number", value)
            return 0
        return value

    def texts(self, key: str, pattern: re.Pattern[str], like: str) -> tuple[str, ...]:
        value = self.data.pop(key, None)
        fine = isinstance(value, list) and all(isinstance(v, str) for v in value)
        if not fine or not value or not all(pattern.match(v) for v in value):
            self._fault(key, "missing" if value is None else "invalid", f"a list of {like}", value)
            return ()
        return tuple(value)

    def choice(self, key: str, allowed: Iterable[str]) -> str:
        allowed = tuple(allowed)
        value = self.text(key)
        if value and value not in allowed:
            self._fault(key, "unknown value", "one of " + ", ".join(allowed), value)
            return ""
        return value

    def table(self, key: str) -> _Table:
        where = ".".join(part for part in (self.where, key) if part)
        return _Table(self.data.pop(key, None), where, self.problems)

    def end(self) -> None:
        """Every key must have been read."""
        for key in self.data:
            self.problems.append(
                Problem(".".join(p for p in (self.where, key) if p), "unknown key")
            )


def _toolchain(table: _Table, folder: Path) -> Toolchain:
    if (schema := table.number("schema")) != 1:
        table._fault("schema", "unknown schema", "1", schema)
    name = table.text("name", _NAME, "lower-case letters, digits, dots and dashes")
    if name and name != folder.name:
        table._fault("name", "not the folder's name", folder.name, name)
    kind = table.choice("kind", KINDS)
    common = {
        "name": name,
        "kind": kind,
        "summary": table.text("summary"),
        "cuda": table.text("cuda", _VERSION, "nvcc's version"),
        "glibc": table.text("glibc", _VERSION, "a version"),
        "source_date_epoch": table.number("source_date_epoch"),
        "python": _python(table.table("python")),
        "folder": folder,
    }
    if kind == "debootstrap":
        common["rootfs"] = _rootfs(table.table("rootfs"))
        # One of the two; what is asked for when there is neither is the Debian packages.
        if "cuda_wheels" in table.data:
            common["cuda_wheels"] = _cuda_wheels(table.table("cuda_wheels"))
        else:
            common["cuda_packages"] = _cuda_packages(table.table("cuda_packages"))
    elif kind == "pull":
        common["base_image"] = _base_image(table.table("base_image"))
    table.end()
    for file in ("Dockerfile", "python.sh"):
        if not (folder / file).is_file():
            table.problems.append(Problem(file, "missing", f"a file beside {folder.name}'s TOML"))
    return Toolchain(**common)


def _python(table: _Table) -> PythonPolicy:
    origins = table.texts(
        "origins", re.compile("|".join(PYTHON_ORIGINS)), ", ".join(PYTHON_ORIGINS)
    )
    policy = PythonPolicy(
        version=table.text("version", re.compile(r"3\.12\Z"), "3.12"),
        origins=origins,
        standalone_version=table.text("standalone_version", re.compile(r"3\.12\.\d+\Z"), "3.12.N"),
        uv_version=table.text("uv_version", _VERSION, "a version"),
    )
    table.end()
    return policy


def _rootfs(table: _Table) -> Rootfs:
    rootfs = Rootfs(
        suite=table.text("suite", _NAME, "a code name"),
        include=table.texts("include", _PACKAGE, "package names"),
        lock=table.text("lock"),
    )
    table.end()
    return rootfs


def _cuda_packages(table: _Table) -> CudaPackages:
    packages = CudaPackages(
        suite=table.text("suite", _NAME, "a code name"),
        components=table.texts("components", _NAME, "component names"),
        names=table.texts("names", _PACKAGE, "package names"),
        lock=table.text("lock"),
    )
    table.end()
    return packages


def _cuda_wheels(table: _Table) -> CudaWheels:
    stubs = table.table("stubs")
    wheels = CudaWheels(
        whole=table.texts("whole", _PIN, "name==version"),
        headers=table.texts("headers", _PIN, "name==version"),
        stubs=tuple(
            Stub(soname, stubs.texts(soname, _HEADER, "header names"))
            for soname in sorted(stubs.data)
            if _SONAME.match(soname)
        ),
        lock=table.text("lock"),
    )
    stubs.end()
    table.end()
    return wheels


def _base_image(table: _Table) -> BaseImage:
    image = BaseImage(
        repository=table.text("repository"),
        tag=table.text("tag"),
        digests=table.texts("digests", _DIGEST, "sha256:<64 hex digits>"),
    )
    table.end()
    return image
