"""The CUDA tree: packages of Debian, or wheels, rearranged into one self-contained folder.

Debian spreads the toolkit over the system and starts nvcc through a shell wrapper with absolute
paths; the package index has it in a dozen wheels (`builder.toolchain_wheels`). nvcc itself, its
helpers, headers, libraries and stubs are put where NVIDIA's own archive has them, with a relative
``nvcc.profile``, so that CMake and PyTorch find them.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from builder.apt import Package
from builder.cache import InputCache, storage_errors
from builder.errors import BuildError
from builder.toolchain_archive import write_archive

LAYOUT = 1
"""To be raised whenever the tree changes for the same packages."""

NVCC_PROFILE = """\

TOP              = $(_HERE_)/..

NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice

LD_LIBRARY_PATH += $(TOP)/lib64:
PATH            += $(TOP)/nvvm/bin:$(_HERE_):

INCLUDES        +=  "-I$(TOP)/include" $(_SPACE_)

LIBRARIES        =+ $(_SPACE_) "-L$(TOP)/lib64/stubs" "-L$(TOP)/lib64"

CUDAFE_FLAGS    +=
PTXAS_FLAGS     +=
"""

_TOOLS = (
    "__nvcc_device_query",
    "bin2c",
    "cu++filt",
    "cudafe++",
    "cuobjdump",
    "fatbinary",
    "nvdisasm",
    "nvlink",
    "nvprune",
    "ptxas",
)
_LIBRARIES = "usr/lib/x86_64-linux-gnu/"

# What nothing here links: static libraries of 2.4 GB, profilers' and debuggers' parts.
_KEPT_STATIC = ("libcudart_static.a", "libcudadevrt.a", "libculibos.a", "libcufilt.a")
_DROPPED = (
    "libnvperf_*",
    "libpcsamplingutil.so",
    "libcheckpoint.so",
    "libaccinj64.so",
    "libcuinj64.so",
)

_NEEDED = (
    "bin/nvcc",
    "bin/ptxas",
    "bin/cudafe++",
    "bin/fatbinary",
    "bin/nvlink",
    "bin/crt/link.stub",
    "nvvm/bin/cicc",
    "nvvm/libdevice/libdevice.10.bc",
    "include/cuda_runtime.h",
    "include/crt/host_config.h",
    "include/cublas_v2.h",
    "include/cusparse.h",
    "include/cusolverDn.h",
    "include/cufft.h",
    "include/curand.h",
    "include/nvrtc.h",
    "include/nvtx3/nvToolsExt.h",
    "include/nvml.h",
    "include/cub/cub.cuh",
    "include/thrust/version.h",
    "lib64/libcudart.so",
    "lib64/libcudart_static.a",
    "lib64/libcudadevrt.a",
    "lib64/stubs/libcuda.so",
    "lib64/stubs/libnvidia-ml.so",
    "lib64/stubs/libcublas.so",
    "lib64/stubs/libnvrtc.so",
)


def place(path: str) -> str | None:
    """Where a file of a package goes in the tree, or None when it is left out.

    >>> place("usr/lib/nvidia-cuda-toolkit/bin/nvcc")
    'bin/nvcc'
    >>> place("usr/bin/nvcc") is None  # the shell wrapper
    True
    """
    pure = PurePosixPath(path)
    name = pure.name
    if pure.parent.as_posix() == "usr/bin" and name in _TOOLS:
        return f"bin/{name}"
    private = _below(path, "usr/lib/nvidia-cuda-toolkit/")
    if private is not None:
        if private == "bin/cicc":
            return "nvvm/bin/cicc"
        if private == "bin/nvcc" or private.startswith("bin/crt/"):
            return private
        return f"nvvm/{private}" if private.startswith("libdevice/") else None
    if path == "usr/include/nvvm.h":
        return "nvvm/include/nvvm.h"
    if (header := _below(path, "usr/include/")) is not None:
        return None if header.startswith("cuda-gdb/") else f"include/{header}"
    if (config := _below(path, "usr/share/cmake/")) is not None:
        return f"lib64/cmake/{config}"  # as deep as before: they look for ../../../include
    if pure.parent.as_posix() == _LIBRARIES + "stubs":
        return f"lib64/stubs/{name}"
    if pure.parent.as_posix() + "/" == _LIBRARIES:
        dropped = any(fnmatch.fnmatch(name, pattern) for pattern in _DROPPED)
        if dropped or (name.endswith(".a") and name not in _KEPT_STATIC):
            return None
        return f"lib64/{name}"
    if pure.match("usr/share/doc/*/copyright"):
        return f"share/doc/{pure.parent.name}/copyright"
    return None


def _below(path: str, folder: str) -> str | None:
    return path.removeprefix(folder) if path.startswith(folder) else None


def make_cuda_archive(
    packages: Sequence[Package],
    cache: InputCache,
    work: Path,
    target: Path,
    *,
    epoch: int,
    say: Callable[[str], None] = lambda text: None,
) -> str:
    """Unpack locked packages into the tree and write it as a tar for ``/``; returns its sha256.

    packages must be in the cache. Raises BuildError when one cannot be unpacked or the tree lacks
    what every CUDA compile needs, StorageError.
    """
    with storage_errors("unpack the CUDA packages in", work):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        for package in packages:
            say(f"unpacking {package.name} {package.version}")
            _unpack(cache.path(package.sha256), work, package.name)
        (work / "bin").mkdir(exist_ok=True)
        (work / "bin/nvcc.profile").write_text(NVCC_PROFILE)
        _drop_dangling_links(work)
        require_files(work, _NEEDED, "builder/toolchain_cuda.py")
        digest = write_archive(work, target, epoch=epoch, prefix="usr/local/cuda", owner=(0, 0))
        shutil.rmtree(work)
    return digest


def _unpack(deb: Path, tree: Path, name: str) -> None:
    # As a stream: nvidia-cuda-dev unpacks to 2.7 GB, of which 20 MB are wanted.
    process = subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    fault = ""
    try:
        with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
            for member in archive:
                where = place(member.name.removeprefix("./"))
                if where is not None and not member.isdir():
                    _extract(archive, member, tree / where)
        process.stdout.read()
    except tarfile.TarError as error:
        fault = str(error)
    finally:
        process.stdout.close()
        complaint = process.stderr.read().decode("utf-8", "replace").strip()
        process.stderr.close()
        status = process.wait()
    if status != 0 or fault:
        raise BuildError(
            f"package {name} could not be unpacked", found=complaint or fault or f"status {status}"
        )


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        target.unlink(missing_ok=True)
        target.symlink_to(member.linkname)
    elif member.isreg():
        source = archive.extractfile(member)
        assert source is not None
        with target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        target.chmod(0o755 if member.mode & 0o100 else 0o644)


def _drop_dangling_links(tree: Path) -> None:
    # Development links to libraries that are not here: their stubs serve the linker.
    again = True
    while again:
        again = False
        for folder, _, names in os.walk(tree):
            for path in (Path(folder, name) for name in names):
                if path.is_symlink() and not path.exists():
                    path.unlink()
                    again = True


def require_files(tree: Path, needed: Sequence[str], where: str) -> None:
    """Raise BuildError when the tree lacks one of these. where: the module to adapt."""
    absent = [name for name in needed if not (tree / name).exists()]
    if absent:
        raise BuildError(
            "the CUDA packages do not hold what a compile needs",
            expected=", ".join(needed),
            found="without " + ", ".join(absent),
            remedy=f"the packages are arranged differently now: adapt {where}",
        )
