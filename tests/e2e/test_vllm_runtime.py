"""The published vLLM runtime: pulled, imported, and its operators against upstream's own wheel.

Slow: needs the finished artifact (KVREG_TEST_REGISTRY, default the checkout's dist/registry) and
several GB of packages, which stay in KVREG_TEST_ENVIRONMENTS (default: the user's cache folder).
There is no GPU here: `libcuda.so.1` is the toolkit's stub, given to these processes alone.
"""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from builder.engine import Mount
from tests.e2e.conftest import ROOT, Commands
from tests.support.toolchain import engine, toolchain_image

__all__ = ["engine", "toolchain_image"]

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.network, pytest.mark.timeout(3600)]

PROFILE, UPSTREAM = "t4x2-cu128", "t4x2-cu128-upstream"
HERE = Path(__file__).parent

# What `import vllm` needs of a host beside torch, and what serving a model needs beside that.
MINIMUM = ("torch==2.10.0", "numpy", "packaging")
RELEASED = "2026-04-20"  # resolve as of vLLM 0.18.1's time: newer releases were never tried with it
NOT_NEEDED = ("torch", "triton", "ray", "numpy", "packaging")

T4_MODULES = (
    "vllm.model_executor.layers.attention",
    "vllm.model_executor.layers.fused_moe",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.qwen2_5_vl",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.attention.backends.triton_attn",
    "vllm.v1.attention.backends.fa_utils",
    "vllm.vllm_flash_attn",
    "vllm.vllm_flash_attn.layers.rotary",
    "vllm.entrypoints.openai.api_server",
)


@pytest.fixture(scope="session")
def environments() -> Path:
    """Where virtual environments are kept between runs."""
    configured = os.environ.get("KVREG_TEST_ENVIRONMENTS")
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    folder = Path(configured) if configured else cache / "kvreg-test-environments"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def make_environment(folder: Path, *install: str) -> Path:
    """A virtual environment of this CPython 3.12, made once; returns its interpreter."""
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        assert sys.version_info[:2] == (3, 12), "run these tests with CPython 3.12"
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        uv("pip", "install", "--python", python, *install)
        (folder / "ready").touch()
    return python


def uv(*argv: object, **options) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "uv"
    return subprocess.run([program, *map(str, argv)], check=True, text=True, **options)


@pytest.fixture(scope="session")
def torch_python(environments: Path) -> Path:
    """CPython 3.12 with torch 2.10.0 from the index and what `import vllm` needs beside it."""
    return make_environment(environments / "torch", *MINIMUM)


@pytest.fixture(scope="session")
def serving_python(environments: Path, torch_python: Path, upstream_wheel: Path) -> Path:
    """The same with everything that vLLM's METADATA asks for."""
    folder = environments / "serving"
    if not (folder / "ready").exists():
        with zipfile.ZipFile(upstream_wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            lines = archive.read(name).decode().splitlines()
        wanted = [
            line.removeprefix("Requires-Dist: ")
            for line in lines
            if line.startswith("Requires-Dist: ") and "extra ==" not in line
        ]
        resolved = uv(
            *("pip", "compile", "-", "--quiet", "--no-header", "--no-annotate"),
            *("--exclude-newer", RELEASED, "--python-version", "3.12"),
            *("--python-platform", "x86_64-manylinux_2_28"),
            input="\n".join(wanted),
            capture_output=True,
        ).stdout.split()
        wanted = [
            pin
            for pin in resolved
            if pin.split("==")[0] not in NOT_NEEDED and not pin.split("==")[0].endswith("-cu12")
        ]
        python = make_environment(folder, "--no-deps", *wanted)
        site = next((folder / "lib").glob("python3*/site-packages"))
        torch_site = next((torch_python.parent.parent / "lib").glob("python3*/site-packages"))
        (site / "zz_torch.pth").write_text(f"{torch_site}\n")
        return python
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def upstream_wheel(commands: Commands) -> Path:
    """Upstream's own wheel, adopted."""
    return Path(commands("builder", "build", "-p", UPSTREAM, "--json").json()["wheel"])


@pytest.fixture(scope="session")
def home(commands: Commands, upstream_wheel: Path, tmp_path_factory) -> Path:
    """A home with both runtimes: the compiled one, and upstream's."""
    home = tmp_path_factory.mktemp("home")
    registry = os.environ.get("KVREG_TEST_REGISTRY", f"oci-layout:{ROOT / 'dist' / 'registry'}")
    commands("kvreg", "pull", PROFILE, "--registry", registry, "--home", home)
    commands("builder", "publish", "-p", UPSTREAM, "--to", "oci-layout:upstream")
    commands("kvreg", "pull", UPSTREAM, "--registry", "oci-layout:upstream", "--home", home)
    return home


@pytest.fixture(scope="session")
def driver(engine, toolchain_image, tmp_path_factory) -> Path:
    """A folder with the toolkit's stub as ``libcuda.so.1``."""
    folder = tmp_path_factory.mktemp("driver")
    folder.chmod(0o777)
    source = "/usr/local/cuda/lib64/stubs/libcuda.so"
    ended = engine.run(
        toolchain_image.image_digest,
        ["cp", "-L", source, "/out/libcuda.so.1"],
        mounts=[Mount(folder, "/out", read_only=False)],
    )
    assert ended.exit_code == 0
    return folder


@pytest.fixture(scope="session")
def activated(commands: Commands, home: Path, driver: Path):
    """`activated(profile, python, argument, …)`: run it by `kvreg run`; the answer's last line."""

    def run(profile: str, python: Path, *argv: object) -> str:
        ended = commands(
            *("kvreg", "run", "--home", home, profile, "--", python, "-W", "ignore", *argv),
            LD_LIBRARY_PATH=str(driver),
        )
        return ended.out

    return run


def test_torch_vllm_and_its_native_modules_import(activated, torch_python):
    code = (
        "import torch, vllm, vllm._C, vllm._moe_C, vllm.cumem_allocator\n"
        "from vllm._version import commit_id\n"
        "print(vllm.__version__, commit_id, torch.__version__)"
    )
    out = activated(PROFILE, torch_python, "-c", code)
    assert out.split() == ["0.18.1+cu128.sm75", "ga26e8dc7f", "2.10.0+cu128"]


def test_without_a_driver_the_import_says_which_library_is_missing(commands, home, torch_python):
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a driver")
    ended = commands(
        *("kvreg", "run", "--home", home, PROFILE, "--", torch_python, "-W", "ignore", "-c"),
        "import torch, vllm._C",
        code=None,
    )
    assert ended.code != 0
    assert "libcuda.so.1" in ended.err


def test_operators_are_those_of_upstream(activated, torch_python):
    def operators(profile: str) -> dict[str, dict[str, object]]:
        return json.loads(activated(profile, torch_python, HERE / "operators.py"))["operators"]

    ours, upstream = operators(PROFILE), operators(UPSTREAM)
    # The same names with the same schemas, but for what is listed and explained in
    # docs/building.md; kernels for this architecture cannot be less than what it can run.
    listed = json.loads((HERE / "operators_difference.json").read_text())
    found = {
        "only_upstream": sorted(set(upstream) - set(ours)),
        "only_ours": sorted(set(ours) - set(upstream)),
        "other_schema": sorted(
            name
            for name in ours.keys() & upstream.keys()
            if ours[name]["schema"] != upstream[name]["schema"]
        ),
        "without_our_kernel": sorted(
            name
            for name in ours.keys() & upstream.keys()
            if set(upstream[name]["kernels"]) - set(ours[name]["kernels"])
        ),
    }
    assert found == listed
    assert len(ours) > 100


def test_on_a_t4_everything_that_serving_imports_is_there(activated, serving_python):
    out = activated(PROFILE, serving_python, HERE / "t4_modules.py", *T4_MODULES)
    result = json.loads(out.splitlines()[-1])
    flash = result.pop("flash attention")
    assert {m: e for m, e in result.items() if e} == {}
    assert set(result) == set(T4_MODULES)
    assert flash == []


def test_running_it_changed_nothing_that_is_staged(commands, home, activated, torch_python):
    activated(PROFILE, torch_python, "-c", "import vllm")
    for profile in (PROFILE, UPSTREAM):
        commands("kvreg", "verify", profile, "--home", home)


def test_one_architecture_unpacks_to_less_than_an_eighth_of_upstreams(commands, home):
    rows = commands("kvreg", "list", "--home", home, "--json").json()
    unpacked = {row["profile"]["name"]: row["bytes"] for row in rows}
    assert unpacked[PROFILE] * 8 < unpacked[UPSTREAM]
