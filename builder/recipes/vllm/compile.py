"""Runs inside the build container: vLLM's sdist to a wheel. See container.py."""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

from container import (
    INPUTS,
    OUT,
    RECIPE,
    WORK,
    compile_environment,
    finish,
    keep_logs,
    make_environment,
    parameters,
    run,
    step,
)

PARAMETERS = parameters()

# torch's macros put __FILE__ into every module: without this the build's folders would be in them.
PREFIX_MAP = f"-ffile-prefix-map={WORK}/="


def sources() -> Path:
    """vLLM's sdist, unpacked; its commit must be the profile's."""
    with tarfile.open(INPUTS / PARAMETERS["sdist"]) as archive:
        archive.extractall(WORK / "src", filter="data")
    (unpacked,) = (WORK / "src").iterdir()
    # One name for every release: with the version in it no object of the last one would be found.
    root = unpacked.rename(WORK / "src" / "vllm")
    text = (root / "vllm" / "_version.py").read_text()
    found = re.search(r"commit_id = 'g([0-9a-f]+)'", text)
    if not found or not PARAMETERS["commit"].startswith(found[1]):
        sys.exit(
            f"the sdist's _version.py names commit {found and found[1]}, "
            f"the profile {PARAMETERS['commit']}"
        )
    return root


def name_units(root: Path) -> None:
    """Let each Marlin source that upstream's build generates define one name of its own.

    They hold explicit instantiations of templates alone. The compiler names what is local to a
    module after its first external definition; where there is none it takes the file's time stamp,
    the working folder and its own process id, and no two builds are the same.
    """
    line = "f.write(file_content)\n"
    for folder in ("csrc/quantization/marlin", "csrc/moe/marlin_moe_wna16"):
        generator = root / folder / "generate_kernels.py"
        text = generator.read_text()
        if text.count(line) != 1:
            sys.exit(f"{folder}/generate_kernels.py does not write its sources as it used to")
        unit = (
            'f\'\\n__attribute__((visibility("hidden"))) int kvreg_unit_'
            f"{Path(folder).name}_{{filename[:-3]}} = 0;\\n'"
        )
        generator.write_text(text.replace(line, f"f.write(file_content + {unit})\n"))


def members(prefix: str, target: Path) -> None:
    """Copy the locked members of upstream's wheel below `prefix` to `target`."""
    root = INPUTS / "members" / prefix
    for file in sorted(root.rglob("*")):
        if file.is_file():
            destination = target / file.relative_to(root)
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, destination)


def externals(root: Path) -> dict[str, str]:
    """Directories that stand for what vLLM's CMake would clone; its own variables name them.

    root: vLLM's sources, which say what they do with them.
    """
    base = WORK / "externals"
    cutlass = base / "cutlass"
    marker = PARAMETERS["cutlass_folder"]
    with zipfile.ZipFile(INPUTS / PARAMETERS["cutlass"]) as archive:
        for name in archive.namelist():
            if name.startswith((marker + "include/", marker + "tools/util/include/")):
                target = cutlass / name.removeprefix(marker)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))

    triton = base / "triton_kernels"
    members("vllm/third_party/triton_kernels", triton)

    flashmla = base / "flashmla"
    members("vllm/third_party/flashmla", flashmla / "flash_mla")

    # CMake wants these directories, but nothing in them is compiled for SM75.
    qutlass, deepgemm = base / "qutlass", base / "deepgemm"
    for folder, reason in (
        (qutlass, "QuTLASS needs compute capability 10.0 or 12.0\n"),
        (deepgemm, "DeepGEMM needs compute capability 9.0 or 10.0\n"),
    ):
        folder.mkdir()
        (folder / "OMITTED").write_text(reason)

    flash = base / "flash-attention"
    members("vllm/vllm_flash_attn", flash / "vllm_flash_attn")
    cute = flash / "vllm_flash_attn" / "cute"
    # Upstream's wheel holds these with the import prefix that vLLM's CMake puts in; take it out
    # where the same CMake puts it in again. Later releases link a local folder as it is.
    (flash / "flash_attn").mkdir()
    linked = "CREATE_LINK" in (root / "cmake/external_projects/vllm_flash_attn.cmake").read_text()
    for file in () if linked else cute.rglob("*.py"):
        text = file.read_text()
        file.write_text(text.replace("vllm.vllm_flash_attn.cute", "flash_attn.cute"))
    cute.rename(flash / "flash_attn" / "cute")
    for name in ("CMakeLists.txt", "fa2_absent.cpp"):
        shutil.copyfile(RECIPE / name, flash / name)

    return {
        "VLLM_CUTLASS_SRC_DIR": str(cutlass),
        "TRITON_KERNELS_SRC_DIR": str(triton),
        "FLASH_MLA_SRC_DIR": str(flashmla),
        "QUTLASS_SRC_DIR": str(qutlass),
        "DEEPGEMM_SRC_DIR": str(deepgemm),
        "VLLM_FLASH_ATTN_SRC_DIR": str(flash),
    }


def vllm_environment(redirected: dict[str, str]) -> dict[str, str]:
    """The variables that vLLM's own build reads."""
    cutlass = redirected["VLLM_CUTLASS_SRC_DIR"]
    ptx = PARAMETERS["ptx"]
    forward = f"-gencode arch=compute_{ptx},code=compute_{ptx}"
    # ccache does not see what nvcc reads from this variable: without a namespace of their own it
    # would answer with objects that have no PTX.
    appended = {"NVCC_APPEND_FLAGS": forward, "CCACHE_NAMESPACE": forward} if ptx else {}
    return {
        **appended,
        "CMAKE_ARGS": (
            f"-DCUTLASS_INCLUDE_DIR={cutlass}/include "
            f"-DCUTLASS_TOOLS_UTIL_INCLUDE_DIR={cutlass}/tools/util/include"
        ),
        "CMAKE_BUILD_TYPE": "Release",
        "CXXFLAGS": PREFIX_MAP,
        "CUDAFLAGS": f"-Xcompiler={PREFIX_MAP}",
        "LDFLAGS": "-Wl,-s",
        # setuptools-scm has no git checkout to ask: the version is the profile's, and the commit
        # must not be lost with it.
        "VLLM_VERSION_OVERRIDE": PARAMETERS["version"],
        "SETUPTOOLS_SCM_PRETEND_METADATA": f'{{node="g{PARAMETERS["commit"][:9]}"}}',
        "VLLM_TARGET_DEVICE": "cuda",
        "VLLM_DISABLE_SCCACHE": "1",
        "TORCH_CUDA_ARCH_LIST": PARAMETERS["architectures"],
        "MAX_JOBS": str(PARAMETERS["jobs"]),
        "NVCC_THREADS": "1",  # one architecture: nothing to run in parallel inside nvcc
        **redirected,
    }


def main() -> None:
    step("install build requirements")
    venv = make_environment(PARAMETERS["requirements"])
    step("unpack sources")
    root = sources()
    name_units(root)
    environment = vllm_environment(externals(root)) | compile_environment(venv, PARAMETERS)
    step("compile")
    python = venv / "bin" / "python"
    run(python, "setup.py", "bdist_wheel", "--dist-dir", OUT, cwd=root, env=environment)
    keep_logs(root / "build", environment)
    finish()


if __name__ == "__main__":
    main()
