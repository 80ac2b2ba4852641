"""``kvreg.pyz``: the same bytes each time, and a client wherever there is a Python."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from builder.cache import InputCache
from builder.client.start import numbers
from builder.client.zipapp import LOCK, client_files, make_zipapp
from builder.fetch import fetch
from builder.index import PackageIndex
from builder.inputs import read_lock
from kvreg.errors import NotFoundError
from kvreg.model.profile import load_profile
from tests.kvreg.profiles import write_profile
from tests.support.layouts import write_layout
from tests.support.wheels import write_wheel

ROOT = Path(__file__).resolve().parents[2]
BARE = (sys.executable, "-I", "-S")
LEAST = {"click": "8.1", "packaging": "23.2", "tqdm": "4.65", "urllib3": "2.2"}


@pytest.fixture(scope="module")
def cache():
    cache = InputCache()
    fetch(read_lock(LOCK), cache, PackageIndex(), lambda count: None)
    return cache


@pytest.fixture(scope="module")
def pyz(cache, tmp_path_factory):
    return make_zipapp(ROOT, tmp_path_factory.mktemp("pyz") / "kvreg.pyz", cache).path


@pytest.fixture
def environment(tmp_path):
    """Nothing of this process's environment but what every process has."""
    return {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "KVREG_HOME": str(tmp_path / "home")}


def run(*words, env, code=0, **options):
    result = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, env=env, **options
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout


def pythons():
    """Every CPython from 3.10 on that this machine has, this one first."""
    found = {sys.version_info[:2]: sys.executable}
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for minor in range(10, 16):
        folders = sorted(versions.glob(f"3.{minor}.*/bin/python3.{minor}"))
        path = shutil.which(f"python3.{minor}") or (folders and str(folders[-1]))
        # A shim of pyenv may answer for a version that is not active.
        if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            found.setdefault((3, minor), path)
    return list(found.values())


@pytest.mark.network
def test_the_same_checkout_makes_the_same_bytes(cache, pyz, tmp_path):
    again = make_zipapp(ROOT, tmp_path / "again.pyz", cache)
    assert again.path.read_bytes() == pyz.read_bytes()
    assert os.access(again.path, os.X_OK)
    copy = tmp_path / "checkout"
    for name in ("kvreg", "profiles"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "kvreg/src/kvreg/__pycache__").mkdir()
    (copy / "kvreg/src/kvreg/__pycache__/x.cpython-312.pyc").touch()
    assert make_zipapp(copy, tmp_path / "copy.pyz", cache).sha256 == again.sha256
    # Another byte makes another file, which unpacks itself into another folder.
    path = copy / "kvreg/src/kvreg/errors.py"
    path.write_bytes(path.read_bytes() + b"\n")
    other = make_zipapp(copy, tmp_path / "other.pyz", cache)
    starts = [zipfile.ZipFile(item.path).read("__main__.py") for item in (again, other)]
    assert starts[0] != starts[1]


@pytest.mark.network
def test_profiles_and_licences_are_in_it(pyz):
    names = zipfile.ZipFile(pyz).namelist()
    for profile in (ROOT / "profiles").glob("*/*"):
        assert f"client/kvreg/_profiles/{profile.relative_to(ROOT / 'profiles')}" in names
    for item in read_lock(LOCK):
        texts = [name for name in names if name.startswith(f"vendored/{item.name}/")]
        assert any("LICEN" in name.upper() for name in texts), item.name
    assert not [name for name in names if name.endswith(".pyc") or "/." in name]


@pytest.mark.network
@pytest.mark.parametrize("python", pythons())
def test_it_runs_on_a_bare_python(pyz, environment, python):
    assert "version 0.1.0" in run(python, "-I", "-S", pyz, "--version", env=environment)
    rows = json.loads(run(python, "-I", "-S", pyz, "profile", "list", "--json", env=environment))
    assert {row["name"]: row["digest"] for row in rows} == {
        path.name: load_profile(path).digest for path in (ROOT / "profiles").iterdir()
    }


@pytest.mark.network
def test_a_venv_without_packages_pulls_verifies_and_runs(pyz, environment, tmp_path):
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", env=environment)
    profile = load_profile(write_profile(tmp_path / "profiles"))
    wheel = write_wheel(
        tmp_path / "wheels", entry_points="[console_scripts]\ndemo = demo_pkg:__doc__\n"
    )
    (tmp_path / "layout").mkdir()
    write_layout(tmp_path / "layout", profile, [(wheel, "native")])
    environment["KVREG_PROFILES"] = str(tmp_path / "profiles")
    command = (tmp_path / "venv/bin/python", pyz)
    options = {"env": environment, "cwd": tmp_path}
    text = run(*command, "pull", "demo", "--registry", "oci-layout:layout", **options)
    assert text.startswith("staged: demo")
    assert "intact" in run(*command, "verify", "demo", **options)
    script = "import demo_pkg; print(demo_pkg.__version__)"
    words = ("run", "demo", "--", tmp_path / "venv/bin/python", "-c", script)
    assert run(*command, *words, **options).strip() == "1.2+cu128.sm75"
    # The network side of it too: this needs urllib3.
    failed = ("resolve", "demo", "--registry", "127.0.0.1:1/a")
    run(*command, *failed, code=4, **options)
    # Nothing was put where a Python looks for packages.
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    assert list(site.iterdir()) == []


ASK = """
import runpy, sys
sys.argv = ["kvreg.pyz", "--version"]
try:
    runpy.run_path({pyz!r}, run_name="__main__")
except SystemExit:
    pass
import click, packaging, tqdm, urllib3
print(*(module.__file__ for module in (click, packaging, tqdm, urllib3)))
"""


def origins(pyz, environment):
    """Where click, packaging, tqdm and urllib3 come from when the file runs."""
    output = run(sys.executable, "-S", "-c", ASK.format(pyz=str(pyz)), env=environment)
    return dict(zip(LEAST, output.splitlines()[-1].split(), strict=True))


@pytest.mark.network
@pytest.mark.parametrize(("version", "ours"), [("99.0", False), ("0.9", True)])
def test_the_hosts_packages_are_used_where_they_will_do(pyz, environment, tmp_path, version, ours):
    host = tmp_path / "host"
    with zipfile.ZipFile(pyz) as archive:
        for name in archive.namelist():
            if name.startswith("vendored/click/click/"):
                target = host / name.removeprefix("vendored/click/")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))
    (host / f"click-{version}.dist-info").mkdir()
    found = origins(pyz, {**environment, "PYTHONPATH": str(host)})
    home = str(tmp_path / "home")
    assert found["click"].startswith(home if ours else str(host))
    assert all(found[name].startswith(home) for name in LEAST if name != "click")


@pytest.mark.network
def test_what_the_host_needs_is_what_the_client_asks_for(pyz):
    start = zipfile.ZipFile(pyz).read("__main__.py").decode()
    for name, least in LEAST.items():
        assert (
            f"'{name}': ('{name}', '{least}')" in start
            or f'"{name}": ("{name}", "{least}")' in start
        )


@pytest.mark.network
def test_many_starts_at_once_unpack_it_once(pyz, environment, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(run, *BARE, pyz, "--version", env=environment) for _ in range(8)]
    assert all("version" in job.result() for job in jobs)
    (folder,) = (tmp_path / "home/client").iterdir()
    assert (folder / "client/kvreg/cli.py").is_file()


@pytest.mark.network
def test_a_home_that_cannot_be_written_does_not_keep_it_from_running(pyz, environment, tmp_path):
    (tmp_path / "tmp").mkdir()
    env = {**environment, "KVREG_HOME": "/dev/null/home", "TMPDIR": str(tmp_path / "tmp")}
    assert "Commands:" in run(*BARE, pyz, "--help", env=env)
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.network
def test_a_damaged_file_does_not_start(pyz, environment, tmp_path):
    raw = bytearray(pyz.read_bytes())
    raw[len(raw) // 2] ^= 1
    (tmp_path / "bad.pyz").write_bytes(raw)
    result = subprocess.run(
        [*BARE, tmp_path / "bad.pyz", "--version"], capture_output=True, text=True, env=environment
    )
    assert result.returncode != 0
    assert not list((tmp_path / "home/client").iterdir())


def test_a_wheel_that_is_not_in_the_cache_is_named(tmp_path):
    with pytest.raises(NotFoundError, match=r"lacks .*\.whl"):
        make_zipapp(ROOT, tmp_path / "kvreg.pyz", InputCache(tmp_path / "cache"))


def test_what_goes_in_is_what_a_wheel_has():
    files = client_files(ROOT)
    assert "client/kvreg/py.typed" in files
    assert not [name for name in files if "__pycache__" in name]


@pytest.mark.parametrize(
    ("one", "other"), [("8.1.7.dist-info", "8.1"), ("10.0", "9.9"), ("25.0rc1", "23.2")]
)
def test_versions_in_order(one, other):
    assert numbers(one) >= numbers(other)
    assert numbers(other) < numbers(one)
