"""Real wheels for the audit's tests: modules compiled by gcc, device code compiled by nvcc."""

import base64
import hashlib
import struct
import subprocess
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvreg.model.profile import Profile
from tests.kvreg.profiles import make_profile

FATBINS = Path(__file__).parent.parent / "data" / "fatbin"
PACKAGE, VERSION, TAG = "demo_pkg", "1.2+cu128.sm75", "cp312-cp312-linux_x86_64"
TORCH_SYMBOL = "_ZN3c106detail12torchCheckEv"
"""c10::detail::torchCheck(), the symbol that the stand-in for torch exports."""


def compile_library(
    folder: Path, name: str, source: str, *options: str, soname: str | None = None
) -> Path:
    """Compile C into a shared object that links nothing but what `options` name."""
    folder.mkdir(parents=True, exist_ok=True)
    path, code = folder / name, folder / f"{name}.c"
    code.write_text(source)
    soname_options = [f"-Wl,-soname,{soname}"] if soname else []
    command = ["gcc", "-shared", "-fPIC", "-O1", "-nostdlib", "-Wl,-s", "-Wl,--build-id=none"]
    subprocess.run(
        [*command, *soname_options, "-o", str(path), str(code), *options],
        check=True,
        cwd=folder,
    )
    return path


def versioned_stub(folder: Path, soname: str, version: str, symbols: list[str]) -> Path:
    """A stand-in for a library whose symbols carry a version, to link modules against."""
    script = folder / f"{soname}.map"
    folder.mkdir(parents=True, exist_ok=True)
    script.write_text(f"{version} {{ global: {' '.join(s + ';' for s in symbols)} local: *; }};\n")
    source = "".join(f"void {symbol}(void) {{}}\n" for symbol in symbols)
    return compile_library(folder, soname, source, f"-Wl,--version-script={script}", soname=soname)


def under(folder: str, rest: str) -> str:
    """A path such as a build leaves behind, put together here so that no file holds one."""
    return f"/{folder}/{rest}"


def device_code(path: Path | str) -> str:
    """C source that puts a file of device code where nvcc puts it."""
    path = FATBINS / path
    return f'__asm__(".section .nv_fatbin,\\"a\\"\\n.align 8\\n.incbin \\"{path}\\"\\n.text\\n");\n'


def calls(*symbols: str) -> str:
    """C source that needs these symbols."""
    lines = [f"extern char {symbol}[];\n" for symbol in symbols]
    lines.append("void *demo_references[] = {" + ", ".join(symbols) + "};\n")
    return "".join(lines)


INIT = "void *PyInit__C(void) { return 0; }\n"


def wheel_members(
    members: dict[str, bytes],
    *,
    name: str = "demo-pkg",
    version: str = VERSION,
    tag: str = TAG,
    requires: tuple[str, ...] = (),
) -> dict[str, bytes]:
    """All members of a wheel, its metadata and a true RECORD included."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {item}\n" for item in requires)
    wheel = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {tag}\n"
    whole = {
        **members,
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": wheel.encode(),
    }
    rows = []
    for path, data in whole.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}\n")
    rows.append(f"{info}/RECORD,,\n")
    return {**whole, f"{info}/RECORD": "".join(rows).encode()}


def write_wheel(
    folder: Path,
    members: dict[str, bytes],
    *,
    filename: str | None = None,
    after: dict[str, bytes] | None = None,
    **options: Any,
) -> Path:
    """Write a wheel; `after` are members changed or added behind RECORD's back."""
    whole = wheel_members(members, **options) | (after or {})
    name = options.get("name", "demo-pkg").replace("-", "_")
    version, tag = options.get("version", VERSION), options.get("tag", TAG)
    path = folder / (filename or f"{name}-{version}-{tag}.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in whole.items():
            archive.writestr(member, data)
    return path


def demo_profile(folder: Path, **build: Any) -> Profile:
    """The profile that the stand-in wheels are audited against; `build` replaces fields of it."""
    profile = make_profile(folder)
    runtime = replace(profile.runtime, modules=("demo_pkg", "demo_pkg._C"))
    limits = replace(profile.build.limits, **build.pop("limits", {}))
    return replace(profile, runtime=runtime, build=replace(profile.build, limits=limits, **build))


@dataclass(frozen=True)
class Torch:
    """A stand-in for torch: a wheel with two libraries, and the folder to link against."""

    wheel: Path
    libraries: Path


def make_torch(folder: Path, symbols: tuple[str, ...] = (TORCH_SYMBOL,)) -> Torch:
    """Build it: ``libtorch.so`` needs ``libc10.so``, which exports the symbols."""
    libraries = folder / "libraries"
    source = "".join(f"void {symbol}(void) {{}}\n" for symbol in symbols)
    compile_library(libraries, "libc10.so", source, soname="libc10.so")
    compile_library(
        libraries,
        "libtorch.so",
        "void torch_anchor(void) {}\n",
        "-Wl,--no-as-needed",
        "-L.",
        "-lc10",
        soname="libtorch.so",
    )
    compile_library(
        libraries, "libtorch_other.so", "void only_other(void) {}\n", soname="libtorch_other.so"
    )
    members = {f"torch/lib/{path.name}": path.read_bytes() for path in libraries.glob("*.so")}
    members["torch/__init__.py"] = b""
    wheel = write_wheel(
        folder,
        members,
        name="torch",
        version="2.10.0",
        requires=("nvidia-cuda-runtime-cu12==12.8.90; platform_system == 'Linux'", "filelock"),
    )
    return Torch(wheel, libraries)


def pack_entry(
    kind: int,
    sm: int,
    payload: bytes,
    *,
    flags: int = 0x11,
    unpacked: int = 0,
    extra_header: int = 0,
) -> bytes:
    """One entry of a fatbin, its payload padded as nvcc pads it."""
    padded = payload + bytes(-len(payload) % 8)
    header = struct.pack(
        "<HHIQIIHHIIIQQQ",
        kind,
        0x0101,
        64 + extra_header,
        len(padded),
        len(payload) if unpacked else 0,
        64 if extra_header else 0,
        7,
        1,
        sm,
        0,
        0,
        flags,
        0,
        unpacked,
    )
    return header + bytes(extra_header) + padded


def pack_region(entries: list[bytes]) -> bytes:
    """One region of a fatbin."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
