"""A small upstream in a package index on loopback: releases of ``vllm`` with real archives."""

import gzip
import hashlib
import io
import shutil
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from builder.inputs import Input, write_lock
from tests.support.package_index import LoopbackIndex

ROOT = Path(__file__).parents[2]

CMAKE = """\
cmake_minimum_required(VERSION 3.26)
set(PYTHON_SUPPORTED_VERSIONS "3.11" "3.12")
# set(TORCH_SUPPORTED_VERSION_CUDA "0.0.0")
set(TORCH_SUPPORTED_VERSION_CUDA "{torch}")
if(DEFINED CMAKE_CUDA_COMPILER_VERSION AND
   CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)
  set(CUDA_SUPPORTED_ARCHS "{new}")
else()
  set(CUDA_SUPPORTED_ARCHS "{old}")
endif()
if (NOT HIP_FOUND AND CUDA_FOUND)
  set(VLLM_GPU_LANG "CUDA")
else()
  message(FATAL_ERROR "no (CUDA)")
endif()
cuda_archs_loose_intersection(CUDA_ARCHS "${{CUDA_SUPPORTED_ARCHS}}" "${{CUDA_ARCHS}}")
cuda_archs_loose_intersection(MARLIN_ARCHS "{marlin}" "${{CUDA_ARCHS}}")
include(cmake/external_projects/flash.cmake)
include(cmake/external_projects/new.cmake)
"""

FLASH = """\
if (DEFINED ENV{{VLLM_FLASH_ATTN_SRC_DIR}})
  FetchContent_Declare(vllm-flash-attn SOURCE_DIR $ENV{{VLLM_FLASH_ATTN_SRC_DIR}})
else()
  FetchContent_Declare(
    vllm-flash-attn
    GIT_REPOSITORY https://example.org/flash-attention.git
    GIT_TAG {commit}
  )
endif()
"""

NEW = """\
if (DEFINED ENV{NEW_SRC_DIR})
  set(NEW_SRC_DIR $ENV{NEW_SRC_DIR})
endif()
set(_TAG "0123456789012345678901234567890123456789")
FetchContent_Declare(new GIT_REPOSITORY https://example.org/new.git GIT_TAG "${_TAG}")
"""


def wheel(
    name: str,
    version: str,
    requires: Iterable[str] = (),
    tag: str = "py3-none-any",
    extra: dict[str, bytes] | None = None,
    python: str = ">=3.10",
) -> tuple[str, bytes]:
    """File name and bytes of a wheel with these requirements."""
    plain = name.replace("-", "_")
    metadata = (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: {python}\n"
    )
    metadata += "".join(f"Requires-Dist: {item}\n" for item in requires)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path, data in (extra or {}).items():
            archive.writestr(path, data)
        info = f"{plain}-{version}.dist-info"
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    return f"{plain}-{version}-{tag}.whl", stream.getvalue()


def sdist(version: str, files: dict[str, str], filler: int = 0) -> tuple[str, bytes]:
    """File name and bytes of an sdist of vllm, members sorted, with `filler` bytes in csrc/."""
    stream = io.BytesIO()
    everything = {**files, "csrc/kernel.cu": "x" * filler, "PKG-INFO": "Name: vllm\n"}
    with (
        gzip.GzipFile(fileobj=stream, mode="wb", mtime=0, compresslevel=1) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted(everything):
            member = tarfile.TarInfo(f"vllm-{version}/{path}")
            data = everything[path].encode()
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return f"vllm-{version}.tar.gz", stream.getvalue()


def add_release(
    index: LoopbackIndex,
    version: str,
    *,
    torch: str = "2.10.0",
    python: str = ">=3.10,<3.14",
    requires: Iterable[str] = (),
    old: str = "7.5;8.0",
    new: str = "7.5;8.0;9.0",
    marlin: str = "7.5;8.0+PTX",
    commit: str = "a" * 40,
    externals: bool = False,
    filler: int = 0,
) -> str:
    """Put a release into the index; the sdist's hex sha256."""
    text = CMAKE.format(torch=torch, old=old, new=new, marlin=marlin)
    files = {
        "CMakeLists.txt": text,
        "cmake/external_projects/flash.cmake": FLASH.format(commit=commit),
    }
    if externals:
        files["cmake/external_projects/new.cmake"] = NEW
    name, data = sdist(version, files, filler)
    needed = ["numpy", f"torch=={torch}", *requires]
    extra = {
        "vllm/third_party/triton_kernels/__init__.py": b"",
        "vllm/third_party/flashmla/flash_mla_interface.py": b"",
        "vllm/vllm_flash_attn/layers.py": b"x = 1\n",
    }
    index.add(
        "vllm", *wheel("vllm", version, needed, "cp38-abi3-manylinux_2_31_x86_64", extra, python)
    )
    return index.add("vllm", name, data)


def add_torch(index: LoopbackIndex, version: str, cuda: str) -> None:
    """torch for the CUDA version that the pin of its runtime library names."""
    major = cuda.partition(".")[0]
    runtime = f"nvidia-cuda-runtime-cu{major}=={cuda}" if major == "12" else f"cuda-toolkit=={cuda}"
    tag = "cp312-cp312-manylinux_2_28_x86_64"
    index.add("torch", *wheel("torch", version, [runtime, "filelock"], tag))
    index.add(*_pair(runtime))


def _pair(pin: str) -> tuple[str, str, bytes]:
    name, _, version = pin.partition("==")
    return (name, *wheel(name, version))


FREEZE = """\
torch==2.10.0+cu128
numpy==2.0.2
filelock==3.20.0
nvidia-cuda-runtime-cu12==12.8.90
"""


def checkout(root: Path, index: LoopbackIndex, version: str = "0.18.1") -> Path:
    """A checkout whose one profile, t4x2-cu128, is locked to that release of the index."""
    shutil.copytree(ROOT / "dockerfiles", root / "dockerfiles")
    folder = root / "profiles" / "t4x2-cu128"
    shutil.copytree(ROOT / "profiles" / "t4x2-cu128", folder)
    (folder / "host-freeze.txt").write_text(FREEZE)
    text = (folder / "profile.toml").read_text()
    (folder / "profile.toml").write_text(
        text.replace('exclude_newer = "2026-05-23"', 'exclude_newer = ""')
    )
    inputs = []
    for name, (project, data) in index.files.items():
        if project != "vllm" or f"-{version}" not in name:
            continue
        kind = "wheel" if name.endswith(".whl") else "sdist"
        digest = hashlib.sha256(data).hexdigest()
        inputs.append(Input("vllm", version, kind, name, len(data), digest))
    write_lock(folder / "source.lock", inputs, "test")
    return root


TOOLS = {
    "cmake": "3.31.0",
    "ninja": "1.13.0",
    "packaging": "26.0",
    "setuptools": "80.0.0",
    "setuptools-scm": "9.0.0",
    "wheel": "0.46.0",
    "jinja2": "3.1.6",
    "nvidia-cutlass": "4.2.0.0",
    "flashinfer-python": "0.6.8.post1",
    "numpy": "2.0.2",
    "filelock": "3.20.0",
    "newdep": "1.5",
}


def add_everything(index: LoopbackIndex) -> None:
    """What a build of these releases requires, and what they do themselves."""
    add_torch(index, "2.10.0", "12.8.90")
    for name, version in TOOLS.items():
        index.add(name, *wheel(name, version))
