"""The compiled vLLM with its overlay on a host like the profile's, as its user has it.

Slow: a virtual environment of CPython 3.12 with torch 2.10.0 and the host's own versions of every
package that the runtime takes from it, those that its overlay shadows included (8 GB), and the
client installed into it. There is no GPU: `libcuda.so.1` is the toolkit's stub (from a toolchain
image, else from the folder KVREG_TEST_DRIVER), and where vLLM wants to know its platform, a plugin
of its own kind (``t4_platform``) answers as a T4 would.
"""

import hashlib
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from builder.freeze import read_freeze
from builder.overlay_lock import kept_packages
from kvreg.model.protected import is_protected
from kvreg.overlay import parse_lock
from tests.e2e.conftest import ROOT
from tests.e2e.test_vllm_runtime import driver, engine, environments, make_environment, uv
from tests.support.notebooks import execute
from tests.support.toolchain import toolchain_image

__all__ = ["driver", "engine", "environments", "toolchain_image"]

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(3600)]

PROFILE = "t4x2-cu128"
FOLDER = ROOT / "profiles" / PROFILE
QUICKSTART = ROOT / "docs/notebooks/quickstart.ipynb"
REGISTRY = os.environ.get("KVREG_TEST_REGISTRY", f"oci-layout:{ROOT / 'dist' / 'registry'}")
PLUGIN = Path(__file__).parent / "t4_platform"

# Where modules come from, with what vLLM's processes do to find out: spawn, subprocess, script.
ORIGINS = """\
import importlib.metadata, json, multiprocessing, subprocess, sys
NAMES = ("transformers", "huggingface_hub", "numba", "openai", "lark", "setuptools", "torch",
         "numpy", "tokenizers", "opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.grpc",
         "distutils.core")
DISTRIBUTIONS = ("vllm", "transformers", "torch")

def origins():
    import importlib
    found = {name: importlib.import_module(name).__file__ for name in NAMES}
    import importlib.util
    found["vllm"] = importlib.util.find_spec("vllm").origin
    found["versions"] = {n: importlib.metadata.version(n) for n in DISTRIBUTIONS}
    return found

def child(connection):
    connection.send(origins())

if __name__ == "__main__":
    import kvreg
    kvreg.activate("t4x2-cu128", home=sys.argv[1])
    found = {"kernel": origins()}
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(theirs,))
    process.start()
    found["spawned"] = ours.recv()
    process.join()
    code = "import json, notebook; print(json.dumps(notebook.origins()))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found["subprocess"] = json.loads(ended.stdout.splitlines()[-1])
    import shutil
    found["script"] = shutil.which("vllm")
    found["interpreter"] = open(found["script"]).readline()
    print(json.dumps(found))
"""


class Host:
    """The virtual environment, and its kvreg."""

    def __init__(self, folder: Path, home: Path, driver: Path) -> None:
        self.folder = folder
        self.home = home
        self.python = folder / "bin" / "python"
        self.driver = driver

    def run(self, *argv: object, cwd: Path | None = None, plugin: bool = False) -> str:
        unset = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "KVREG_PROFILES")
        values = {key: value for key, value in os.environ.items() if key not in unset}
        values |= {"KVREG_HOME": str(self.home), "LD_LIBRARY_PATH": str(self.driver)}
        if plugin:
            values["PYTHONPATH"] = str(PLUGIN)
        ended = subprocess.run(
            [*map(str, argv)], env=values, cwd=cwd, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
        return ended.stdout

    def kvreg(self, *argv: object, **options) -> str:
        return self.run(self.folder / "bin" / "kvreg", *argv, **options)

    def state(self) -> str:
        """A digest over every file of it but compiled ones, which its own use makes."""
        state = hashlib.sha256()
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                status = path.lstat()
                state.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
        return state.hexdigest()


@pytest.fixture(scope="module")
def stub(request) -> Path:
    """A folder with the toolkit's ``libcuda.so.1``."""
    configured = os.environ.get("KVREG_TEST_DRIVER")
    return Path(configured) if configured else request.getfixturevalue("driver")


@pytest.fixture(scope="module")
def host(environments, stub, tmp_path_factory) -> Host:
    """The host before anything was pulled."""
    freeze = read_freeze(FOLDER / "host-freeze.txt")
    lock = (FOLDER / "overlay.lock").read_text()
    shadowed = {e.name: freeze[e.name] for e in parse_lock(lock.encode()) if e.name in freeze}
    wanted = {**kept_packages(lock), **shadowed, "ipykernel": freeze["ipykernel"]}
    pins = [f"{name}=={v}" for name, v in wanted.items() if not is_protected(name)]
    pins += [f"numpy=={freeze['numpy']}", "torch==2.10.0"]
    key = hashlib.sha256("\n".join(sorted(pins)).encode()).hexdigest()[:8]
    folder = environments / f"host-{key}"
    make_environment(folder, "--exclude-newer", "2026-05-24", *pins)
    uv("pip", "install", "--quiet", "--python", folder / "bin/python", "--no-deps", ROOT / "kvreg",
       "--reinstall-package", "kvreg")  # fmt: skip
    return Host(folder, tmp_path_factory.mktemp("home"), stub)


@pytest.fixture(scope="module")
def before(host) -> str:
    return host.state()


@pytest.fixture(scope="module")
def pulled(host, before) -> Host:
    """The host with the runtime pulled and staged by its own kvreg."""
    host.kvreg("pull", PROFILE, "--registry", REGISTRY)
    return host


def test_everything_sees_the_same(pulled, tmp_path):
    (tmp_path / "notebook.py").write_text(ORIGINS)
    out = pulled.run(pulled.python, "notebook.py", pulled.home, cwd=tmp_path)
    found = json.loads(out.splitlines()[-1])
    kernel = found["kernel"]
    (runtime,) = (pulled.home / "runtimes").iterdir()
    overlay = ("transformers", "huggingface_hub", "numba", "openai", "lark", "setuptools",
               "opentelemetry.exporter.otlp.proto.grpc", "distutils.core")  # fmt: skip
    for name in overlay:
        assert kernel[name].startswith(f"{runtime}/overlay/"), name
    for name in ("torch", "numpy", "tokenizers", "opentelemetry.sdk.trace"):
        assert kernel[name].startswith(f"{pulled.folder}/lib/"), name
    assert kernel["vllm"].startswith(f"{runtime}/site/")
    assert kernel["versions"]["transformers"].startswith("4.")
    assert found["spawned"] == kernel
    assert found["subprocess"] == kernel
    assert found["script"] == f"{runtime}/site/bin/vllm"
    assert found["interpreter"] == f"#!{pulled.python}\n"


def test_vllm_and_its_native_modules_import(pulled):
    code = "import vllm, vllm._C, vllm._moe_C, vllm.cumem_allocator; print(vllm.__version__)"
    out = pulled.kvreg("run", PROFILE, "--", pulled.python, "-W", "ignore", "-c", code)
    assert out.split()[-1] == "0.18.1+cu128.sm75"


def test_vllms_own_command_line_works(pulled):
    out = pulled.kvreg("run", PROFILE, "--", "vllm", "--version", plugin=True)
    assert out.splitlines()[-1] == "0.18.1+cu128.sm75"
    out = pulled.kvreg("run", PROFILE, "--", "vllm", "bench", "serve", "--help")
    assert "usage: vllm bench serve" in out
    out = pulled.kvreg(
        "run", PROFILE, "--", "vllm", "serve", "--help=attention-backend", plugin=True
    )
    assert "--attention-backend" in out


def test_an_uncached_start_compiles_only_the_runtime(pulled):
    began = time.monotonic()
    pulled.kvreg("run", PROFILE, "--", pulled.python, "-c", "import vllm")
    print(f"import vllm, compiled files at hand: {time.monotonic() - began:.1f} s")
    packages = {path.parts[-3] for path in (pulled.home / "pycache").rglob("*.pyc")}
    assert "torch" not in packages


def test_the_quick_start_runs_on_it(pulled, tmp_path):
    """All of it that needs no GPU; it finds the runtime staged."""
    unset = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "KVREG_PROFILES")
    values = {key: value for key, value in os.environ.items() if key not in unset}
    values |= {
        "PATH": f"{pulled.folder}/bin{os.pathsep}{os.environ['PATH']}",
        "KVREG_HOME": str(pulled.home),
        "KVREG_REGISTRY": REGISTRY,
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    cells = execute(QUICKSTART, values, tmp_path, python=pulled.python, timeout=900)
    printed = "\n".join(cells.values())
    assert "native   vllm 0.18.1+cu128.sm75" in printed
    assert "overlay  transformers 4.57.6" in printed
    assert "48 packages of the runtime, the same in the kernel and in its children" in printed


def test_host_and_runtime_are_as_they_were(pulled, before):
    assert pulled.state() == before
    pulled.kvreg("verify", PROFILE)
