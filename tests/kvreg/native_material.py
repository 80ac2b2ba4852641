"""Small shared objects for tests, compiled by gcc, and a stand-in for torch made of them."""

import subprocess
from pathlib import Path

TORCH_SYMBOL = "_ZN3c106detail14torchCheckFailENSt7__cxx1112basic_stringE"
"""A name as torch's C++ would have it, with the string of the new ABI in it."""

MODULE = "void *PyInit__C(void) { return 0; }\n"


def compile_library(folder: Path, name: str, source: str, *options: str) -> Path:
    """Compile C into a shared object named `name`, which is its soname too."""
    folder.mkdir(parents=True, exist_ok=True)
    code = folder / f"{name}.c"
    code.write_text(source)
    command = ["gcc", "-shared", "-fPIC", "-O1", "-nostdlib", f"-Wl,-soname,{name}"]
    subprocess.run(
        [*command, "-o", str(folder / name), str(code), *options], check=True, cwd=folder
    )
    code.unlink()
    return folder / name


def exports(*symbols: str) -> str:
    """C source that defines functions."""
    return "".join(f"int {symbol}(void) {{ return 0; }}\n" for symbol in symbols)


def needs(*symbols: str) -> str:
    """C source that refers to functions of others."""
    lines = [f"extern int {symbol}(void);\n" for symbol in symbols]
    return "".join(lines) + f"void *demo[] = {{ {', '.join(symbols)} }};\n"


def nccl(folder: Path, version: str, *options: str) -> Path:
    """A library that says to be NCCL of a version, as NCCL does."""
    source = f'const char demo_version[] = "NCCL version {version} compiled with CUDA 12.8";\n'
    return compile_library(folder, "libnccl.so.2", source + exports("ncclDemo"), *options)


def fake_torch(
    site: Path,
    *symbols: str,
    version: str = "2.10.0+cu128",
    search: str = "-Wl,--disable-new-dtags",
) -> Path:
    """A folder ``torch`` whose libraries need pip's NCCL as torch's do, and export `symbols`.

    `search` makes the search path an RPATH, as torch has it; ``-Wl,--enable-new-dtags`` a RUNPATH.
    """
    library = site / "torch" / "lib"
    own = nccl(site / "nvidia" / "nccl" / "lib", "2.27.5")
    origin = "-Wl,-rpath,$ORIGIN:$ORIGIN/../../nvidia/nccl/lib"
    flags = 'const char demo_flags[] = "\\0sm_70 sm_75 compute_120\\0";\n'
    compile_library(library, "libc10.so", exports(*symbols, TORCH_SYMBOL))
    compile_library(
        library, "libtorch_cuda.so", needs("ncclDemo"), search, origin, f"-L{own.parent}",
        "-l:libnccl.so.2",
    )  # fmt: skip
    compile_library(
        library, "libtorch_python.so", flags + needs(TORCH_SYMBOL), search, origin, f"-L{library}",
        "-Wl,--no-as-needed", "-lc10", "-ltorch_cuda",
    )  # fmt: skip
    compile_library(
        site / "torch", "_C.so", "void *PyInit__C(void) { return 0; }\n", search,
        "-Wl,-rpath,$ORIGIN/lib", f"-L{library}", f"-Wl,-rpath-link,{own.parent}",
        "-Wl,--no-as-needed", "-ltorch_python",
    )  # fmt: skip
    (site / "torch" / "__init__.py").write_text("raise ImportError('this torch is a stand-in')\n")
    (site / "torch" / "version.py").write_text(
        "from typing import Optional\n"
        f"__version__ = '{version}'\ncuda: Optional[str] = '12.8'\ngit_version = 'abc'\n"
        "hip: Optional[str] = None\nraise SystemExit('this file is read and never run')\n"
    )
    return site / "torch"
