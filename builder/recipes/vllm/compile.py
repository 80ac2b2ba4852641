"""Runs inside the build container: locked inputs in /inputs, one wheel out in /out.

Standard library only; started by the toolchain's CPython with no network and no inherited
environment. Every path is fixed, so that objects do not depend on the machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

INPUTS = Path("/inputs")
RECIPE = Path("/recipe")
WORK = Path("/work")
OUT = Path("/out")

PARAMETERS = json.loads((RECIPE / "parameters.json").read_text())
STEPS: list[dict[str, object]] = []


def step(name: str) -> None:
    """Say what begins; the time that each step took goes into the build record."""
    now = time.monotonic()
    if STEPS:
        STEPS[-1]["seconds"] = round(now - STEPS[-1].pop("started"), 1)
    STEPS.append({"name": name, "started": now})
    print(f"::step {name}", flush=True)


def run(*argv: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    subprocess.run([str(a) for a in argv], cwd=cwd, env=env, check=True)


def environment() -> Path:
    """A virtual environment with exactly the locked build requirements."""
    venv = WORK / "venv"
    run(sys.executable, "-m", "venv", venv)
    wheels = [INPUTS / name for name in PARAMETERS["requirements"]]
    run(
        *(venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"),
        *("--no-compile", "--no-cache-dir", "--disable-pip-version-check", *wheels),
    )
    return venv


def sources() -> Path:
    """vLLM's sdist, unpacked; its commit must be the profile's."""
    with tarfile.open(INPUTS / PARAMETERS["sdist"]) as archive:
        archive.extractall(WORK / "src", filter="data")
    (root,) = (WORK / "src").iterdir()
    text = (root / "vllm" / "_version.py").read_text()
    found = re.search(r"commit_id = 'g([0-9a-f]+)'", text)
    if not found or not PARAMETERS["commit"].startswith(found[1]):
        sys.exit(
            f"the sdist's _version.py names commit {found and found[1]}, "
            f"the profile {PARAMETERS['commit']}"
        )
    return root


def members(prefix: str, target: Path) -> None:
    """Copy the locked members of upstream's wheel below `prefix` to `target`."""
    root = INPUTS / "members" / prefix
    for file in sorted(root.rglob("*")):
        if file.is_file():
            destination = target / file.relative_to(root)
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, destination)


def externals() -> dict[str, str]:
    """Directories that stand for what vLLM's CMake would clone; its own variables name them."""
    base = WORK / "externals"
    cutlass = base / "cutlass"
    marker = "cutlass_library/source/"
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

    qutlass = base / "qutlass"  # CMake wants the directory; nothing in it is compiled for SM75
    qutlass.mkdir()
    (qutlass / "OMITTED").write_text("QuTLASS needs compute capability 10.0 or 12.0\n")

    flash = base / "flash-attention"
    members("vllm/vllm_flash_attn", flash / "vllm_flash_attn")
    cute = flash / "vllm_flash_attn" / "cute"
    if cute.is_dir():
        # Upstream's wheel holds these with the import prefix that vLLM's CMake puts in; take it
        # out, because the same CMake puts it in again.
        (flash / "flash_attn").mkdir()
        for file in cute.rglob("*.py"):
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
        "VLLM_FLASH_ATTN_SRC_DIR": str(flash),
    }


def compile_wheel(root: Path, venv: Path, redirected: dict[str, str]) -> None:
    cmake = next((venv / "lib").glob("python3*/site-packages/cmake/data/bin"))
    cutlass = redirected["VLLM_CUTLASS_SRC_DIR"]
    env = {
        "PATH": f"{venv}/bin:{cmake}:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": os.environ["HOME"],
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "CUDA_HOME": "/usr/local/cuda",
        "CMAKE_ARGS": (
            f"-DCUTLASS_INCLUDE_DIR={cutlass}/include "
            f"-DCUTLASS_TOOLS_UTIL_INCLUDE_DIR={cutlass}/tools/util/include"
        ),
        "CMAKE_BUILD_TYPE": "Release",
        "LDFLAGS": "-Wl,-s",
        "SETUPTOOLS_SCM_PRETEND_METADATA": '{node="g%s"}' % PARAMETERS["commit"][:9],
        "VLLM_VERSION_OVERRIDE": PARAMETERS["version"],
        "VLLM_TARGET_DEVICE": "cuda",
        "VLLM_DISABLE_SCCACHE": "1",
        "TORCH_CUDA_ARCH_LIST": PARAMETERS["architectures"],
        "MAX_JOBS": str(PARAMETERS["jobs"]),
        "NVCC_THREADS": "1",
        "SOURCE_DATE_EPOCH": str(PARAMETERS["source_date_epoch"]),
        **redirected,
        **PARAMETERS["environment"],
    }
    for name in ("CCACHE_DIR", "CCACHE_DISABLE", "CCACHE_MAXSIZE"):
        if name in os.environ:
            env[name] = os.environ[name]
    (OUT / "environment.json").write_text(json.dumps(env, indent=1, sort_keys=True))
    run(venv / "bin" / "python", "setup.py", "bdist_wheel", "--dist-dir", OUT, cwd=root, env=env)


def keep_log(root: Path) -> None:
    """Ninja's own log (times of every translation unit) and ccache's counters, for the record."""
    for log in sorted((root / "build").rglob(".ninja_log")):
        shutil.copyfile(log, OUT / "ninja_log")
    for commands in sorted((root / "build").rglob("build.ninja")):
        shutil.copyfile(commands, OUT / "build.ninja")
    if "CCACHE_DIR" in os.environ:
        counters = subprocess.run(
            ["ccache", "--print-stats"], capture_output=True, text=True, check=False
        )
        (OUT / "ccache_stats").write_text(counters.stdout)


def main() -> None:
    step("install build requirements")
    venv = environment()
    step("unpack sources")
    root = sources()
    redirected = externals()
    step("compile")
    compile_wheel(root, venv, redirected)
    keep_log(root)
    step("done")
    STEPS.pop()
    (OUT / "steps.json").write_text(json.dumps(STEPS, indent=1))


if __name__ == "__main__":
    main()
