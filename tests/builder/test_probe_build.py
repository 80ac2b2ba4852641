"""The probe's wheel, compiled here: its contents, that it loads, and its answer without a GPU.

Needs nvcc, the build requirements in this environment, and CPython 3.12; skipped without them, and
then covered by the build in the container alone.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest

from builder.audit import audit_wheel
from kvreg.model.profile import load_profile

ROOT = Path(__file__).parents[2]
PROBE = ROOT / "builder" / "probe"
EPOCH = "1774917780"


def _missing() -> str | None:
    if sys.version_info < (3, 12):
        return "CPython 3.12 or newer"
    if shutil.which("nvcc") is None:
        return "nvcc on the path"
    for module in ("scikit_build_core", "cmake", "ninja", "pip"):
        if importlib.util.find_spec(module) is None:
            return f"the package {module}"
    return None


needs_compiler = pytest.mark.skipif(_missing() is not None, reason=f"needs {_missing()}")


def compile_wheel(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build a copy of the tree in `folder`; the wheel goes to its subfolder `out`."""
    source, out = folder / "src", folder / "out"
    shutil.copytree(PROBE, source, ignore=shutil.ignore_patterns("__pycache__"))
    options = ("-v", "--no-build-isolation", "--no-deps", "--no-index", "--no-cache-dir")
    return subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, source, "-w", out],
        env=os.environ | {"SOURCE_DATE_EPOCH": EPOCH} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe")
    done = compile_wheel(folder, KVREG_PROBE_LOCAL_VERSION="cu128.sm75", CUDAARCHS="75-real")
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (folder / "out").iterdir()
    return path


@pytest.fixture(scope="module")
def run(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run this Python with the wheel unpacked on its path, and no device visible."""
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", *arguments],
            env={"PYTHONPATH": str(site), "CUDA_VISIBLE_DEVICES": "", "PATH": os.defpath},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run


@needs_compiler
def test_the_wheel_passes_the_audit_of_its_profile(wheel: Path) -> None:
    assert wheel.name == "kvreg_probe-0.1.0+cu128.sm75-cp312-abi3-linux_x86_64.whl"
    report = audit_wheel(wheel, load_profile(ROOT / "profiles" / "t4-probe"))
    assert report.ok, json.dumps(report.to_dict(), indent=2)


@needs_compiler
def test_another_directory_gives_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a-folder-of-another-length"
    folder.mkdir()
    done = compile_wheel(folder, KVREG_PROBE_LOCAL_VERSION="cu128.sm75", CUDAARCHS="75-real")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "out" / wheel.name).read_bytes() == wheel.read_bytes()


@needs_compiler
def test_without_a_gpu_the_command_says_so_and_succeeds(run: Callable) -> None:
    done = run("-m", "kvreg_probe", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    schema = json.loads((PROBE / "src" / "kvreg_probe" / "report.schema.json").read_text())
    jsonschema.validate(report, schema)
    assert report["status"] == "no-gpu"
    assert report["reason"]
    assert report["build"]["compute_capabilities"] == ["7.5"]
    text = run("-m", "kvreg_probe")
    assert text.returncode == 0
    assert report["reason"] in text.stdout


@needs_compiler
def test_the_command_has_help_and_a_version(run: Callable) -> None:
    assert run("-m", "kvreg_probe", "--version").stdout == "kvreg-probe 0.1.0+cu128.sm75\n"
    assert "examples:" in run("-m", "kvreg_probe", "--help").stdout
    assert run("-m", "kvreg_probe", "--unknown").returncode == 2


@needs_compiler
def test_the_native_module_answers_failures_as_values(run: Callable) -> None:
    done = run(
        "-c",
        "import json, kvreg_probe._native as n\n"
        "print(json.dumps([n.device(0), n.image(0), n.free_memory(0), n.checks(0), n.link(0, 1),\n"
        "                  n.copy_within(0, 1024, 1), n.copy_between(0, 1, True, 1024, 1)]))",
    )
    assert done.returncode == 0, done.stderr
    for answer in json.loads(done.stdout):
        assert answer["failure"].keys() == {"call", "code", "name", "text"}
        assert answer["failure"]["call"].startswith("cuda")


@needs_compiler
def test_wrong_arguments_are_exceptions(run: Callable) -> None:
    code = "import kvreg_probe._native as n; n.copy_within(0, {}, {})"
    for bytes_, repetitions in ((0, 1), (-4, 1), (6, 1), (4, 0)):
        done = run("-c", code.format(bytes_, repetitions))
        assert done.returncode == 1
        assert "ValueError: expected bytes a positive multiple of 4" in done.stderr


@needs_compiler
@pytest.mark.parametrize(
    ("architectures", "words"),
    [
        ("75", "expected SASS only"),
        ("75-virtual", "expected SASS only"),
        ("all", "expected SASS only"),
        ("75-real;80", "expected SASS only"),
        ("70-real", "expected 75-real or newer"),
    ],
)
def test_ptx_and_old_architectures_are_refused(
    architectures: str, words: str, tmp_path: Path
) -> None:
    done = compile_wheel(tmp_path, CUDAARCHS=architectures)
    assert done.returncode != 0
    assert words in " ".join((done.stdout + done.stderr).split())


@pytest.fixture
def release() -> ModuleType:
    path = PROBE / "metadata" / "probe_release.py"
    spec = importlib.util.spec_from_file_location("probe_release", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("local", "version"), [(None, "0.1.0"), ("", "0.1.0"), ("cu128.sm75", "0.1.0+cu128.sm75")]
)
def test_the_local_version_comes_from_the_environment(
    local: str | None, version: str, release: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL", raising=False)
    if local is not None:
        monkeypatch.setenv("LOCAL", local)
    settings = {"version": "0.1.0", "environment": "LOCAL"}
    assert release.dynamic_metadata(settings, {}) == {"version": version}


@pytest.mark.parametrize("local", ["cu128+sm75", "-", "cu 128", "CU128", "cu128-sm75", "../x"])
def test_a_wrong_local_version_is_refused(
    local: str, release: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL", local)
    with pytest.raises(ValueError, match="LOCAL is no"):
        release.dynamic_metadata({"version": "0.1.0", "environment": "LOCAL"}, {})
