"""The Debian toolchain's image, for real: found again, complete, and able to compile for sm_75."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builder.cache import InputCache
from builder.engine import Engine, Mount
from builder.errors import BuildError
from builder.toolchain import ToolchainImage, ensure_image, find_built, load_toolchain
from builder.toolchain_image import build_image, pull_base, read_manifest
from kvreg.errors import NetworkError
from tests.support.toolchain import TOOLCHAIN, engine, toolchain_image

__all__ = ["engine", "toolchain_image"]

pytestmark = pytest.mark.engine


def _run(engine: Engine, image: ToolchainImage, script: str, *mounts: Mount) -> list[str]:
    lines: list[str] = []
    result = engine.run(
        image.image_digest,
        ["/bin/bash", "-euc", script],
        mounts=mounts,
        user="1000:1000",
        on_line=lines.append,
    )
    assert result.exit_code == 0, "\n".join(lines)
    return lines


def test_an_image_that_is_there_is_found_at_once(
    engine: Engine, toolchain_image: ToolchainImage
) -> None:
    cache = InputCache()
    clock = time.monotonic()
    again = ensure_image(
        engine, load_toolchain(TOOLCHAIN), cache, say=lambda text: pytest.fail(text)
    )
    assert time.monotonic() - clock < 1
    assert again == toolchain_image


def test_its_record_says_what_it_is_made_of(
    toolchain_image: ToolchainImage,
) -> None:
    image = toolchain_image
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", image.image_digest)
    assert (image.cuda_version, image.glibc) == ("12.4.131", "2.36")
    assert image.gcc.startswith("12.") and image.python.startswith("3.12.")
    packages = {name: version for _, name, version, _ in image.packages}
    assert packages["nvidia-cuda-toolkit"].startswith("12.4.131")
    assert {"libc6", "gcc-12", "ccache", "patchelf", "libcudart12"} <= set(packages)
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for *_, digest in image.packages)
    assert {p["suite"] for p in image.record["packages"]} == {"bookworm", "trixie"}
    assert set(image.record["rootfs_drift"]) == {"changed", "added", "removed"}
    assert image.record["python"]["origin"] in ("environment", "path", "pyenv", "uv", "standalone")
    text = json.dumps(image.to_dict())
    assert "://" not in text and str(Path.home()) not in text


def test_a_lost_record_is_made_again_from_the_image(
    engine: Engine, toolchain_image: ToolchainImage, tmp_path: Path
) -> None:
    again = find_built(engine, load_toolchain(TOOLCHAIN), InputCache(tmp_path))
    assert again == toolchain_image
    manifest = read_manifest(engine, toolchain_image.image_digest)
    assert len(manifest["packages"]) == len(toolchain_image.packages)


def test_nvcc_compiles_and_links_for_sm_75_without_network(
    engine: Engine, toolchain_image: ToolchainImage
) -> None:
    script = r"""
cd "$(mktemp -d)"
cat > a.cu <<'X'
#include <cstdio>
#include <cub/cub.cuh>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cufft.h>
#include <curand_kernel.h>
#include <cusolverDn.h>
#include <cusparse.h>
#include <mma.h>
#include <nvml.h>
#include <nvrtc.h>
#include <nvtx3/nvToolsExt.h>
#include <thrust/device_vector.h>
__global__ void twice(__half *x) { x[threadIdx.x] = __hadd(x[threadIdx.x], x[threadIdx.x]); }
int main() {
  twice<<<1, 32>>>(nullptr);
  int count = 0;
  auto status = cudaGetDeviceCount(&count);
  std::printf("status %d\n", static_cast<int>(status));
}
X
nvcc -std=c++17 -gencode arch=compute_75,code=sm_75 -o a a.cu
cuobjdump --list-elf a
cuobjdump --list-ptx a
./a
echo 'int main(){}' > b.cu
nvcc -o b b.cu -lcuda -lcublas -lcusparse -lcusolver -lcufft -lcurand -lnvrtc -lnvidia-ml
echo linked
"""
    lines = _run(engine, toolchain_image, script)
    text = "\n".join(lines)
    assert re.findall(r"sm_\d+", text) and set(re.findall(r"sm_\d+", text)) == {"sm_75"}
    assert ".ptx" not in text
    # No driver: 35 (too old) or 100 (no device); above all, it ran.
    assert any(re.fullmatch(r"status (35|100)", line) for line in lines)
    assert lines[-1] == "linked"


def test_nothing_of_the_toolchain_names_this_machine(
    engine: Engine, toolchain_image: ToolchainImage
) -> None:
    script = r"""
cd /opt/python3.12
cat bin/python3.12-config lib/pkgconfig/* lib/python3.12/_sysconfigdata*.py 2>/dev/null |
    grep -c -E '/root/|/home/' || true
cat /etc/hostname /etc/machine-id 2>/dev/null | grep -v kvreg-build | grep -c . || true
readelf -d /opt/python3.12/bin/python3.12 | grep -E 'RPATH|RUNPATH' | grep -vc ORIGIN || true
"""
    assert _run(engine, toolchain_image, script) == ["0", "0", "0"]


def test_its_python_makes_environments_and_installs_wheels_offline(
    engine: Engine, toolchain_image: ToolchainImage, tmp_path: Path
) -> None:
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src/pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    # A wheel is a zip: made by hand, so that the test needs no build tool.
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, zipfile\n"
            "z = zipfile.ZipFile(sys.argv[1], 'w')\n"
            "z.writestr('tiny.py', 'VALUE = 42')\n"
            "z.writestr('tiny-1.dist-info/METADATA', "
            "'Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\n')\n"
            "z.writestr('tiny-1.dist-info/WHEEL', "
            "'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n"
            "z.writestr('tiny-1.dist-info/RECORD', '')\n"
            "z.close()",
            str(inputs / "tiny-1-py3-none-any.whl"),
        ],
        check=True,
    )
    script = r"""
export HOME=/tmp
/opt/python3.12/bin/python3.12 -m venv /tmp/v
/tmp/v/bin/pip install --quiet --no-index --find-links /inputs tiny
/tmp/v/bin/python -c 'import ctypes, sqlite3, ssl, lzma, bz2, tiny; print(tiny.VALUE)'
cat > /tmp/m.c <<'X'
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "m", 0, 0, 0};
PyMODINIT_FUNC PyInit_m(void) { return PyModule_Create(&module); }
X
cd /tmp
gcc -shared -fPIC $(/opt/python3.12/bin/python3.12-config --includes) -o m.so m.c
/opt/python3.12/bin/python3.12 -c 'import m; print(m.__name__)'
"""
    lines = _run(engine, toolchain_image, script, Mount(inputs, "/inputs"))
    assert lines[-2:] == ["42", "m"]


def test_an_image_that_cannot_be_pulled_names_its_digests_and_the_way_out(engine: Engine) -> None:
    toolchain = load_toolchain("cuda-12.8.1-ubuntu22.04")
    assert toolchain.base_image is not None
    try:
        reference = pull_base(engine, toolchain, (TOOLCHAIN,))
    except NetworkError as error:
        assert error.exit_code == 4
        for digest in toolchain.base_image.digests:
            assert digest in (error.expected or "")
        assert error.found
        assert f"--toolchain {TOOLCHAIN}" in (error.remedy or "")
    else:
        assert reference.split("@")[1] in toolchain.base_image.digests


def test_a_dockerfile_that_fails_shows_the_engines_words(engine: Engine, tmp_path: Path) -> None:
    toolchain = load_toolchain(TOOLCHAIN)
    with pytest.raises(BuildError) as caught:
        build_image(engine, toolchain, {}, target="base")  # without what it adds
    assert "rootfs.tar" in (caught.value.found or "")
