"""The host is never changed: every file of its Python, hashed before and after.

A virtual environment stands for the notebook. In it a runtime is pulled, verified, activated in a
kernel and in children, imported from, deactivated, and removed; the host's own packages are
imported all the while. Then every file is what it was, and no file is new. The environment has its
bytecode compiled first, as an image has: what Python itself would write is there already.

The quick form has packages made for it; the slow one has the packages of the published image that
vLLM's requirements touch, in the image's own versions.
"""

import hashlib
import importlib.metadata
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from builder.freeze import read_freeze
from tests.e2e.conftest import ROOT
from tests.kvreg.profiles import make_profile
from tests.support.layouts import write_layout
from tests.support.wheels import write_wheel

FREEZE = ROOT / "tests/data/hosts/colab-gpu-2026-05-22/pip-freeze.txt"
CLIENT_NEEDS = ("click", "packaging", "tqdm", "urllib3")
# What is on the index under no such name and version: builds of the image's own.
NOT_ON_THE_INDEX = {"torchcodec"}

# What a notebook does with a runtime, and what its children see.
NOTEBOOK = """
import subprocess, sys
import kvreg
pulled = kvreg.pull("demo", registry=sys.argv[1], progress=False)
assert pulled.staged
import six as host
before = host.__file__
kvreg.activate("demo")
import demo_pkg
assert demo_pkg.__file__.startswith(str(pulled.runtime.folder)), demo_pkg.__file__
child = "import demo_pkg, shared_pkg; print(demo_pkg.__version__, shared_pkg.__version__)"
ended = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True)
assert ended.stdout.split() == ["1.2+cu128.sm75", "2"], ended.stdout
assert subprocess.run(["demo"], capture_output=True, text=True, check=True).stdout == "demo\\n"
kvreg.deactivate()
ended = subprocess.run([sys.executable, "-c", "import shared_pkg; print(shared_pkg.__version__)"],
                       capture_output=True, text=True, check=True)
assert ended.stdout.split() == ["1"], ended.stdout
assert host.__file__ == before
print("done")
"""


def snapshot(root: Path) -> dict[str, tuple[str, int]]:
    """Content (or target of a link) by hash, and mode, of everything below a directory."""
    found = {}
    for parent, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = Path(parent, name)
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                content = str(path.readlink()).encode()
            elif stat.S_ISREG(status.st_mode):
                content = path.read_bytes()
            else:
                content = b""
            digest = hashlib.sha256(content).hexdigest()
            found[str(path.relative_to(root))] = (digest, status.st_mode)
    return found


def differing(before: dict[str, tuple[str, int]], after: dict[str, tuple[str, int]]) -> list[str]:
    """Paths that were changed, added or removed."""
    return sorted(
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    )


class Host:
    """A virtual environment, and a directory to work in with a home below it."""

    def __init__(self, folder: Path, work: Path) -> None:
        self.folder = folder
        self.work = work
        self.python = folder / "bin/python"
        (self.site,) = folder.glob("lib/python*/site-packages")

    def run(self, *words: object, code: int = 0) -> str:
        """Run a program of the environment as its user does."""
        unset = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONPYCACHEPREFIX")
        environment = {key: value for key, value in os.environ.items() if key not in unset}
        environment |= {
            "KVREG_HOME": str(self.work / "home"),
            "KVREG_PROFILES": str(self.work / "profiles"),
            "HOME": str(self.work),
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }
        ended = subprocess.run(
            list(map(str, words)),
            capture_output=True,
            text=True,
            env=environment,
            cwd=self.work,
            check=False,
        )
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout

    def compiled(self) -> None:
        """Compile everything that can be compiled, as the image's makers did."""
        command = [self.python, "-m", "compileall", "-q", "-j", "2", self.site]
        subprocess.run(command, capture_output=True, check=False)


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Path:
    """The client's wheel."""
    folder = tmp_path_factory.mktemp("client")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(command, cwd=ROOT / "kvreg", check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def pip_install(host: Host, *words: object) -> None:
    """Install with this environment's pip into the host."""
    command = [sys.executable, "-m", "pip", "--python", host.python, "install", "-q"]
    command += ["--no-deps", "--no-index", "--disable-pip-version-check", *words]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)


def copy_distribution(name: str, site: Path) -> None:
    """Put an installed package of this environment into another one."""
    for file in importlib.metadata.distribution(name).files or ():
        source = Path(file.locate())
        if ".." not in file.parts and source.is_file() and source.suffix != ".pyc":
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def publish(work: Path) -> str:
    """A runtime with a module, a script and a module that the host has in another version."""
    profile = make_profile(work / "profiles")
    wheel = write_wheel(
        work / "wheels",
        extra={
            "shared_pkg/__init__.py": b"__version__ = '2'\n",
            "demo_pkg/command.py": b"def main():\n    print('demo')\n",
        },
        entry_points="[console_scripts]\ndemo = demo_pkg.command:main\n",
    )
    (work / "layout").mkdir()
    write_layout(work / "layout", profile, [(wheel, "native")])
    return f"oci-layout:{work / 'layout'}"


def prove(host: Host, client: Path) -> int:
    """Do everything that a user does; the number of files that were compared."""
    reference = publish(host.work)
    host.compiled()
    before = snapshot(host.folder)
    pip_install(host, client)
    host.compiled()
    # Installing the client adds its own files and changes none.
    installed = snapshot(host.folder)
    added = [path for path in differing(before, installed) if path not in before]
    assert differing(before, installed) == added
    own = (f"{host.site.relative_to(host.folder)}/kvreg", "bin/kvreg")
    assert [path for path in added if not path.startswith(own)] == []
    packages = json.loads(host.run(host.python, "-c", PACKAGES))

    script = host.work / "notebook.py"
    script.write_text(NOTEBOOK)
    assert host.run(host.python, script, reference) == "done\n"
    kvreg = host.folder / "bin/kvreg"
    words = ("run", "demo", "--", host.python, "-c", "import demo_pkg; print(demo_pkg.__file__)")
    assert host.run(kvreg, *words).startswith(str(host.work / "home"))
    shell = f'eval "$({kvreg} env demo)" && demo'
    assert host.run("sh", "-c", shell) == "demo\n"
    assert "intact" in host.run(kvreg, "verify", "demo")
    host.run(kvreg, "remove", "demo", "--yes")
    host.run(kvreg, "gc", "--delete", "--older-than", "0")
    assert not list((host.work / "home/runtimes").iterdir())

    after = snapshot(host.folder)
    assert differing(installed, after) == []
    assert json.loads(host.run(host.python, "-c", PACKAGES)) == packages
    return len(after)


PACKAGES = """
import importlib.metadata, json
found = {item.metadata["Name"]: item.version for item in importlib.metadata.distributions()}
print(json.dumps(found))
"""


def test_no_file_of_a_host_is_changed(client, tmp_path):
    """In a host with packages made for it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (tmp_path / "work").mkdir()
    host = Host(tmp_path / "venv", tmp_path / "work")
    for name, version in (
        ("torch", "2.10.0"),
        ("numpy", "2.0.2"),
        ("shared_pkg", "1"),
        ("six", "1"),
    ):
        wheel = write_wheel(tmp_path / "host", name, version, "py3-none-any")
        shutil.unpack_archive(wheel, host.site, "zip")
    for name in CLIENT_NEEDS:
        copy_distribution(name, host.site)
    assert prove(host, client) > 200


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.skipif(sys.version_info[:2] != (3, 12), reason="the image's Python is 3.12")
@pytest.mark.timeout(3600)
def test_no_file_of_the_published_image_is_changed(client, tmp_path):
    """In a host that has what the image has of everything that vLLM's requirements touch."""
    freeze = read_freeze(FREEZE)
    pins = [
        f"{name}=={version.partition('+')[0]}"
        for name, version in sorted(freeze.items())
        if name not in NOT_ON_THE_INDEX
    ]
    uv = [sys.executable, "-m", "uv"]
    folder = tmp_path / "venv"
    subprocess.run([*uv, "venv", "-q", "-p", sys.executable, folder], check=True)
    install = [*uv, "pip", "install", "-q", "-p", folder / "bin/python", "--no-deps", *pins]
    subprocess.run(list(map(str, install)), check=True)
    (tmp_path / "work").mkdir()
    host = Host(folder, tmp_path / "work")
    wheel = write_wheel(tmp_path / "host", "shared_pkg", "1", "py3-none-any")
    shutil.unpack_archive(wheel, host.site, "zip")
    count = prove(host, client)
    size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{len(pins)} packages, {count} files, {size / 1e9:.2f} GB: identical")
    assert count > 20_000
