"""Facts and doctor with the real torch of the package index, against what really happens.

Slow: needs the environment of `test_vllm_runtime` (gigabytes, kept between runs).
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT
from tests.e2e.test_vllm_runtime import PROFILE, environments, home, torch_python, upstream_wheel

__all__ = ["environments", "home", "torch_python", "upstream_wheel"]

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(1800)]

TRUTH = """
import json, torch
lines = open("/proc/self/maps").read().splitlines()
print(json.dumps({
    "maps": sorted({line.split()[-1] for line in lines if ".so" in line}),
    "version": torch.__version__, "cuda": torch.version.cuda,
    "abi": torch.compiled_with_cxx11_abi(), "flags": torch._C._cuda_getArchFlags().split(),
}))
"""
SIMULATED = """
import json
from kvreg.facts.machine import Machine
from kvreg.facts.process import torch_process
from kvreg.facts.torch import torch_folder
with torch_process(torch_folder(), Machine()) as loader:
    print(json.dumps(sorted({str(item.path.resolve()) for item in loader.files})))
"""


def run(python: Path, *arguments: str, code: int = 0, **environment: str) -> str:
    """Run the environment's interpreter with the client on its path."""
    # The client's requirements are pure Python, so this interpreter's copies serve.
    import click

    path = os.pathsep.join([str(ROOT / "kvreg" / "src"), str(Path(click.__file__).parents[1])])
    clean = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/root")}
    done = subprocess.run(
        [python, "-W", "ignore", *arguments],
        env={**clean, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def decoy(torch_python, tmp_path_factory) -> Path:
    """Another file of the same NCCL."""
    (own,) = torch_python.parents[1].glob("lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2")
    path = tmp_path_factory.mktemp("decoy") / own.name
    path.write_bytes(own.read_bytes())
    return path


@pytest.mark.parametrize("variable", [None, "LD_LIBRARY_PATH", "LD_PRELOAD"])
def test_the_simulated_process_is_the_real_one(torch_python, decoy, variable):
    values = {"LD_LIBRARY_PATH": str(decoy.parent), "LD_PRELOAD": str(decoy)}
    environment = {variable: values[variable]} if variable else {}
    truth = json.loads(run(torch_python, "-c", TRUTH, **environment))
    simulated = set(json.loads(run(torch_python, "-c", SIMULATED, **environment)))
    assert {path for path in simulated if ".so" in path} <= set(truth["maps"])
    # Every library of torch's and of CUDA's but the optional one is in the simulation too.
    real = {p for p in truth["maps"] if "/torch/lib/" in p or "/nvidia/" in p}
    assert {path for path in real - simulated if "libnvToolsExt" not in path} == set()
    facts = json.loads(run(torch_python, "-m", "kvreg", "facts", "--json", **environment))
    loaded = Path(facts["nccl"]["loaded"]["path"])
    assert (loaded == decoy) == (variable == "LD_PRELOAD")
    assert facts["nccl"]["loaded"]["version"] == "2.27.5"


def test_facts_from_files_are_those_that_torch_itself_tells(torch_python):
    truth = json.loads(run(torch_python, "-c", TRUTH))
    found = json.loads(run(torch_python, "-m", "kvreg", "facts", "--json"))["torch"]
    assert found["version"] == truth["version"] == "2.10.0+cu128"
    assert found["cuda"] == truth["cuda"]
    assert found["cxx11_abi"] == truth["abi"]
    flags = [f"sm_{text.replace('.', '')}" for text in found["compute_capabilities"]]
    assert flags == truth["flags"]
    asked = json.loads(run(torch_python, "-m", "kvreg", "facts", "--json", "--import-torch"))
    assert asked["torch"]["source"] == "import"
    assert asked["torch"]["version"] == truth["version"]


@pytest.mark.engine
def test_doctor_finds_vllms_symbols_in_this_torch(torch_python, home):
    words = ["-m", "kvreg", "doctor", PROFILE, "--home", str(home), "--json"]
    report = json.loads(run(torch_python, *words, code=1))
    checks = {check["name"]: check for check in report["checks"]}
    assert checks["native.symbols"]["status"] == "ok"
    assert checks["native.versions"]["status"] == "ok"
    if not Path("/proc/driver/nvidia/version").exists():
        assert checks["gpu.count"]["found"] == "0"
        assert "libcuda.so.1" in checks["native.libraries"]["found"]
