"""Wheels for tests, well-formed or spoilt in one way."""

import base64
import hashlib
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

Files = dict[str, bytes]

LINUX_TAG = "cp310-abi3-manylinux_2_31_x86_64"


def wheel_files(
    name: str = "demo_pkg",
    version: str = "1.2+cu128.sm75",
    tag: str = LINUX_TAG,
    extra: Mapping[str, bytes] | None = None,
    entry_points: str = "",
) -> Files:
    """The members of a small wheel, without RECORD."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"__version__ = {version!r}\n".encode(),
        f"{name}/data.bin": bytes(range(256)) * 40,
        **(extra or {}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
    }
    if entry_points:
        files[f"{info}/entry_points.txt"] = entry_points.encode()
    return files


def record_of(files: Mapping[str, bytes], record: str) -> bytes:
    """A RECORD of members; `record` is its own path."""
    rows = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        quoted = f'"{path}"' if "," in path else path
        rows.append(f"{quoted},sha256={digest},{len(data)}\n")
    return "".join([*rows, f"{record},,\n"]).encode()


def write_wheel(
    folder: Path,
    name: str = "demo_pkg",
    version: str = "1.2+cu128.sm75",
    tag: str = LINUX_TAG,
    *,
    extra: Mapping[str, bytes] | None = None,
    entry_points: str = "",
    spoil: Callable[[Files], None] | None = None,
    mode: Callable[[str], int] = lambda path: 0o100755 if path.endswith(".sh") else 0o100644,
) -> Path:
    """Write a wheel; `spoil` changes its members (RECORD among them) after RECORD was made."""
    files = wheel_files(name, version, tag, extra, entry_points)
    record = f"{name}-{version}.dist-info/RECORD"
    files[record] = record_of(files, record)
    if spoil is not None:
        spoil(files)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in files.items():
            info = zipfile.ZipInfo(member, (2026, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = mode(member) << 16
            archive.writestr(info, data)
    return path
