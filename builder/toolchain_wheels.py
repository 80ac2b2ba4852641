"""The CUDA tree from the wheels of the package index, which has CUDA 13's compiler whole.

The wheels hold neither the driver's stub nor the names without a version that a linker looks for,
and their libraries are hundreds of megabytes that nothing here links: stubs stand for those, with
the sonames of the real ones. They are compiled in the image that they are for.
"""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from builder.cache import InputCache, storage_errors
from builder.engine import Engine, Mount
from builder.errors import BuildError
from builder.index import PackageIndex
from builder.inputs import Input, write_lock
from builder.lock import lock_sources
from builder.recipes.model import Sources
from builder.toolchain_archive import write_archive
from builder.toolchain_cuda import require_files
from builder.toolchain_definition import CUDA_HOME, CudaWheels, Stub, Toolchain

LAYOUT = 1
"""To be raised whenever the tree changes for the same wheels."""

STUBS = f"{CUDA_HOME}/lib64/stubs"

NVCC_PROFILE = """\

TOP              = $(_HERE_)/..

CICC_PATH        = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice

LD_LIBRARY_PATH += $(TOP)/lib64:
PATH            += $(CICC_PATH):$(_HERE_):

INCLUDES        +=  "-I$(TOP)/include" $(_SPACE_)
SYSTEM_INCLUDES +=  "-isystem" "$(TOP)/include/cccl" $(_SPACE_)

LIBRARIES        =+ $(_SPACE_) "-L$(TOP)/lib64/stubs" "-L$(TOP)/lib64"

CUDAFE_FLAGS    +=
PTXAS_FLAGS     +=
"""

_ROOT = re.compile(r"nvidia/cu\d+/(?P<path>.+)")
_KEPT_LIBRARIES = re.compile(
    r"libcudart\.so\.\d+|libcudart_static\.a|libcudadevrt\.a|libculibos\.a"
)

_NEEDED = (
    "bin/nvcc",
    "bin/ptxas",
    "bin/cudafe++",
    "bin/fatbinary",
    "bin/nvlink",
    "bin/cuobjdump",
    "bin/crt/link.stub",
    "nvvm/bin/cicc",
    "nvvm/libdevice/libdevice.10.bc",
    "include/cuda_runtime.h",
    "include/crt/host_config.h",
    "include/cublas_v2.h",
    "include/cusparse.h",
    "include/cusolverDn.h",
    "include/cufft.h",
    "include/curand_kernel.h",
    "include/nvrtc.h",
    "include/nvtx3/nvToolsExt.h",
    "include/nvml.h",
    "include/cccl/cub/cub.cuh",
    "include/cccl/thrust/version.h",
    "lib64/libcudart.so",
    "lib64/libcudart_static.a",
    "lib64/libcudadevrt.a",
)


def place(path: str) -> str | None:
    """Where a member of a wheel goes in the tree, or None when it is left out.

    >>> place("nvidia/cu13/nvvm/bin/cicc")
    'nvvm/bin/cicc'
    >>> place("nvidia/cu13/lib/libcublasLt.so.13") is None
    True
    """
    pure = PurePosixPath(path)
    if ".." in pure.parts:
        return None
    if len(pure.parts) == 3 and pure.match("*.dist-info/licenses/*"):
        return f"share/doc/{pure.parts[0].split('-')[0]}/{pure.name}"
    found = _ROOT.fullmatch(path)
    inside = found["path"] if found else ""
    top, _, rest = inside.partition("/")
    if top in ("bin", "nvvm", "include") and rest and rest != "nvcc.profile":
        return inside
    if top == "lib" and _KEPT_LIBRARIES.fullmatch(rest):
        return f"lib64/{rest}"
    return None


def lock_wheels(toolchain: Toolchain, wheels: CudaWheels, index: PackageIndex) -> Path:
    """Lock the wheels that the definition names; returns the file.

    Raises NotFoundError, NetworkError.
    """
    headers = tuple((spec, ("nvidia/*/include/*",), ()) for spec in wheels.headers)
    locked = lock_sources(Sources(wheels=wheels.whole, members=headers), index, lambda text: None)
    path = toolchain.folder / wheels.lock
    write_lock(
        path,
        locked,
        "nvcc, headers and the static runtime: wheels of the package index, exact.\n"
        f"Written by `builder toolchain lock {toolchain.name}`.",
    )
    return path


def make_wheel_archive(
    inputs: Iterable[Input], cache: InputCache, work: Path, target: Path, *, epoch: int
) -> str:
    """Unpack locked wheels into the tree and write it as a tar for ``/``; returns its sha256.

    inputs must be in the cache. Raises BuildError when the tree lacks what every CUDA compile
    needs, StorageError.
    """
    with storage_errors("unpack the CUDA wheels in", work):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        for item in inputs:
            if item.kind == "members":
                for member in item.members:
                    _write(work, member.path, cache.path(member.sha256).read_bytes())
                continue
            with zipfile.ZipFile(cache.path(item.sha256)) as wheel:
                for info in wheel.infolist():
                    if not info.is_dir() and place(info.filename) is not None:
                        _write(work, info.filename, wheel.read(info))
        (work / "bin").mkdir(exist_ok=True)
        (work / "bin/nvcc.profile").write_text(NVCC_PROFILE)
        for library in sorted((work / "lib64").glob("libcudart.so.*")):
            (work / "lib64/libcudart.so").symlink_to(library.name)
        require_files(work, _NEEDED, "builder/toolchain_wheels.py")
        digest = write_archive(work, target, epoch=epoch, prefix="usr/local/cuda", owner=(0, 0))
        shutil.rmtree(work)
    return digest


def _write(tree: Path, path: str, data: bytes) -> None:
    where = place(path)
    if where is None:
        return
    target = tree / where
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    # The wheels' own modes let the owner alone execute, and nobody compiles as root.
    program = where.startswith(("bin/", "nvvm/bin/")) and data.startswith(b"\x7fELF")
    target.chmod(0o755 if program else 0o644)


def declared(header: str) -> set[str]:
    """The functions that a C header of CUDA declares, under all their names.

    >>> sorted(declared("#define cuInit cuInit_v2\\nCUresult cuInit(int); /* cuNot() */"))
    ['cuInit', 'cuInit_v2']
    """
    code = re.sub(r"/\*.*?\*/|//[^\n]*", " ", header, flags=re.DOTALL)
    name = r"(?:cu|nv)(?!da[A-Z_])[A-Za-z]\w*"
    called = re.findall(rf"\b({name})\s*\(", code)
    # A newer version of a function has its own name, and the header's macro leads to it.
    renamed = re.findall(rf"^\s*#\s*define\s+{name}\s+({name})\s*$", code, flags=re.MULTILINE)
    return set(called) | set(renamed)


def make_stubs(
    engine: Engine,
    base: str,
    stubs: Iterable[Stub],
    read_header: Callable[[str], str],
    target: Path,
    *,
    user: str,
) -> None:
    """Compile the stubs into `target` with the compiler of the image `base`, without network.

    They define every function that their headers declare and nothing else; what links to one
    needs the real library by its soname. Raises BuildError when the compiler fails, StorageError.
    """
    script = ["set -eu", f"cd {STUBS}"]
    with storage_errors("write", target):
        target.mkdir(parents=True, exist_ok=True)
        for stub in stubs:
            names: set[str] = set().union(*(declared(read_header(h)) for h in stub.headers))
            link = stub.soname.rpartition(".")[0]
            (target / f"{link}.c").write_text(
                "".join(f"void {name}(void) {{}}\n" for name in sorted(names))
            )
            script.append(
                f"gcc -w -shared -fPIC -nostdlib -ffreestanding -Wl,-soname,{stub.soname}"
                f" -Wl,--build-id=none -Wl,-s -o {link} {link}.c"
            )
            script.append(f"rm {link}.c")
    lines: list[str] = []
    result = engine.run(
        base,
        ["/bin/sh", "-c", "\n".join(script)],
        mounts=[Mount(target, STUBS, read_only=False)],
        user=user,
        on_line=lines.append,
    )
    if result.exit_code != 0:
        raise BuildError(
            "the stubs of CUDA's libraries could not be compiled",
            found="\n    ".join(lines[-5:]) or f"exit status {result.exit_code}",
        )
