"""Makes ``kvreg.pyz``: the client, the profiles and the packages that it needs, in one file.

The packages are pure Python, locked by sha256 in ``vendored.lock`` and kept whole, with their
licences. The same checkout and lock make the same bytes: members are sorted, stored and dated 1980,
and the name of the folder that the file unpacks itself into is the digest of what is in it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import canonicalize_name

from builder.cache import InputCache
from builder.index import PackageIndex, index_url
from builder.inputs import Input, read_lock, write_bytes, write_lock
from kvreg import toml
from kvreg.errors import NotFoundError, UsageError
from kvreg.model.digest import sha256_bytes

LOCK = Path(__file__).with_name("vendored.lock")
OLDEST_PYTHON = "3.10"

_START = Path(__file__).with_name("start.py")
_SHEBANG = b"#!/usr/bin/env python3\n"
_DATE = (1980, 1, 1, 0, 0, 0)
_PURE = [Tag("py3", "none", "any")]
# What the standard library of the oldest Python lacks.
_BACKPORTS = ("tomli>=2",)
_LEFT_OUT = ("__pycache__",)

Files = dict[str, bytes]


@dataclass(frozen=True)
class Zipapp:
    """A file that was made; `bytes` is its size and `vendored` what it brings along."""

    path: Path
    sha256: str
    bytes: int
    vendored: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """As JSON-ready data."""
        return {
            "path": str(self.path),
            "sha256": self.sha256,
            "bytes": self.bytes,
            "vendored": list(self.vendored),
        }


def lock_vendored(root: Path, index: PackageIndex, path: Path = LOCK) -> tuple[Input, ...]:
    """Choose the newest versions that run on the oldest Python, and write the lock."""
    wanted = [*_requirements(root), *map(Requirement, _BACKPORTS)]
    inputs = []
    for name, version in sorted(_resolve(wanted).items()):
        file = index.best_wheel(name, version, _PURE)
        inputs.append(Input(name, version, "wheel", file.filename, index.size(file), file.sha256))
    header = "What kvreg.pyz brings along.\nWritten by: builder zipapp --lock"
    write_lock(path, inputs, header)
    return tuple(inputs)


def make_zipapp(root: Path, output: Path, cache: InputCache, lock: Path = LOCK) -> Zipapp:
    """Write the file from the checkout `root`; the locked wheels must be in the cache.

    Raises `NotFoundError` when one is not, `StorageError` when it cannot be written.
    """
    vendored = read_lock(lock)
    files = client_files(root)
    for item in vendored:
        files |= _wheel_files(item, cache)
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    files["__main__.py"] = _start(root, digest.hexdigest()[:32])
    content = BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(files.items()):
            info = zipfile.ZipInfo(name, _DATE)
            info.create_system = 3
            info.external_attr = 0o100644 << 16
            archive.writestr(info, data)
    raw = _SHEBANG + content.getvalue()
    output.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(output, raw)
    output.chmod(0o755)
    names = tuple(f"{item.name} {item.version}" for item in vendored)
    return Zipapp(output, sha256_bytes(raw), len(raw), names)


def client_files(root: Path) -> Files:
    """The import package and the profiles, by their names in the file."""
    package = root / "kvreg" / "src" / "kvreg"
    files = {f"client/kvreg/{name}": data for name, data in _tree(package).items()}
    for profile in sorted((root / "profiles").glob("*/profile.toml")):
        for name, data in _tree(profile.parent).items():
            files[f"client/kvreg/_profiles/{profile.parent.name}/{name}"] = data
    return files


def _tree(folder: Path) -> Files:
    files = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        for name in names:
            path = Path(parent, name)
            if not name.startswith(".") and not name.endswith(".pyc"):
                files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return files


def _wheel_files(item: Input, cache: InputCache) -> Files:
    if not cache.has(item.sha256):
        raise NotFoundError(
            f"the input cache lacks {item.filename}",
            expected=f"sha256:{item.sha256}",
            remedy="fetch it: builder zipapp",
        )
    with zipfile.ZipFile(cache.path(item.sha256)) as wheel:
        return {
            f"vendored/{canonicalize_name(item.name)}/{name}": wheel.read(name)
            for name in wheel.namelist()
            if not name.endswith("/")
        }


def _start(root: Path, digest: str) -> bytes:
    """The first script, with what the client asks for filled in."""
    needed = {}
    for requirement in [*_requirements(root), *map(Requirement, _BACKPORTS)]:
        least = next(item.version for item in requirement.specifier if item.operator == ">=")
        needed[requirement.name] = (canonicalize_name(requirement.name), least)
    text = _START.read_text("utf-8")
    for old, new in (
        ("NEEDED: dict = {}", f"NEEDED: dict = {needed!r}"),
        ('DIGEST = ""', f'DIGEST = "{digest}"'),
    ):
        if text.count(old) != 1:
            raise AssertionError(f"{_START.name} has no single line {old}")
        text = text.replace(old, new)
    return text.encode("utf-8")


def _requirements(root: Path) -> list[Requirement]:
    project = toml.loads((root / "kvreg" / "pyproject.toml").read_text("utf-8"))["project"]
    return [Requirement(text) for text in project["dependencies"]]


def _resolve(wanted: list[Requirement]) -> dict[str, str]:
    """name -> version of the requirements and of what they need, for the oldest Python."""
    command = [
        *(
            sys.executable,
            "-m",
            "uv",
            "pip",
            "compile",
            "-",
            "--quiet",
            "--no-config",
            "--no-header",
            "--no-annotate",
        ),
        *("--python-version", OLDEST_PYTHON, "--python-platform", "x86_64-manylinux_2_28"),
        *("--only-binary", ":all:", "--default-index", index_url()),
    ]
    text = "\n".join(map(str, wanted))
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise UsageError(
            "the client's requirements cannot be resolved together",
            expected=text.replace("\n", ", "),
            found=result.stderr.strip(),
        )
    pins = {}
    for line in result.stdout.splitlines():
        requirement = Requirement(line.split("#")[0].strip())
        pins[canonicalize_name(requirement.name)] = next(iter(requirement.specifier)).version
    return pins
