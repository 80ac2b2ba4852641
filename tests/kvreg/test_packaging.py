"""The client's distributions: what they hold, and what importing costs."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROFILES = {path.parent.name for path in ROOT.glob("profiles/*/profile.toml")}


def run(*arguments, **options):
    result = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, **options
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """A wheel and a source distribution built from the checkout."""
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "hatchling", "build", "-d", folder, cwd=ROOT / "kvreg")
    return folder


def profiles_in(names, prefix):
    found = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    return {name.split("/")[0] for name in found if name.endswith("/profile.toml")}


def test_the_wheel_holds_the_import_package_alone(distributions):
    (wheel,) = distributions.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"kvreg", "kvreg-0.1.0.dist-info"}
    assert profiles_in(names, "kvreg/_profiles/") == PROFILES
    # Data that code reads: the parts of the report's page, and the program of a rank.
    page = {path.name for path in (ROOT / "kvreg/src/kvreg/report/page").iterdir()}
    assert {f"kvreg/report/page/{name}" for name in page} <= set(names)
    assert "kvreg/nccl/worker.py" in names


def test_a_wheel_from_the_source_distribution_is_the_same(distributions, tmp_path):
    (archive,) = distributions.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    run("-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "again", cwd=source)
    (again,) = (tmp_path / "again").glob("*.whl")
    (wheel,) = distributions.glob("*.whl")
    assert again.read_bytes() == wheel.read_bytes()


def test_the_installed_wheel_knows_its_profiles(distributions, tmp_path):
    (wheel,) = distributions.glob("*.whl")
    run("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", tmp_path, wheel)
    script = "from kvreg import catalogue; print(catalogue._BUNDLED); print(*catalogue.folders())"
    output = run("-c", script, env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    bundled, names = output.splitlines()
    assert Path(bundled).is_relative_to(tmp_path)
    assert set(names.split()) == PROFILES


@pytest.mark.parametrize("module", ["kvreg", "kvreg.cli", "kvreg.model.profile"])
def test_imports_stay_light(module):
    heavy = {"urllib3", "tqdm", "numpy", "torch", "requests", "ssl", "zipfile"}
    script = f"import sys, {module}; print(*sys.modules)"
    loaded = {name.split(".")[0] for name in run("-c", script).split()}
    assert not loaded & heavy


def test_import_of_the_package_imports_nothing_else():
    script = (
        "import sys; before = set(sys.modules); import kvreg; print(*set(sys.modules) - before)"
    )
    assert run("-c", script).split() == ["kvreg"]
