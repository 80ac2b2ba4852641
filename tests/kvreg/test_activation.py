"""Activation: the same import origins everywhere, as if installed, and taken back again."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kvreg.activation import check_environment, start_up_folder, variables
from kvreg.errors import ContractError
from tests.support.overlays import publish_overlay
from tests.support.wheels import write_wheel

ANY = "py3-none-any"
SETTINGS = """
[runtime.environment]
set = { DEMO_BACKEND = "safe", DEMO_METHOD = "spawn" }
[[runtime.environment.deny]]
name = "DEMO_BACKEND"
values = ["fast"]
reason = "crashes here"
[[runtime.environment.deny]]
name = "DEMO_LIBRARY"
values = ["*"]
reason = "another library"
"""

# Prints where everything came from, as one JSON object.
ORIGINS = """\
import importlib, importlib.metadata as metadata, json, os, sys

def origins():
    import shared_ns.host_part, shared_ns.runtime_part, shadowed, demo_pkg, by_pth, sitecustomize
    import demo_plugin, lonely, loads_by_file
    entry = {e.name: e.load().__module__ for e in metadata.entry_points(group="demo.plugins")}
    modules = (shared_ns.host_part, shared_ns.runtime_part, shadowed, demo_pkg, by_pth,
               demo_plugin, lonely)
    return {
        **{module.__name__: module.__file__ for module in modules},
        "versions": [metadata.version(n) for n in ("shadowed", "demo_pkg", "extra_pkg", "lonely")],
        "entries": entry,
        "hook": sorted(os.environ.get("DEMO_PTH_RAN", "").split()),
        "sitecustomize": sitecustomize.__file__,
        "path": [p for p in sys.path if p not in ("", os.getcwd()) and not p.endswith("/bin")],
    }

def main():
    print(json.dumps(origins()))
    return 0
"""

# What a notebook does: activates in its kernel, then looks from everywhere.
NOTEBOOK = """\
import json, multiprocessing, os, subprocess, sys

def child(connection):
    import origins
    connection.send(origins.origins())

if __name__ == "__main__":
    import kvreg
    activation = kvreg.activate("demo", home=sys.argv[1])
    import origins
    found = {"kernel": origins.origins()}
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(theirs,))
    process.start()
    found["spawned"] = ours.recv()
    process.join()
    def run(*command):
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        return json.loads(ended.stdout)
    found["subprocess"] = run(sys.executable, "-c", "import origins; origins.main()")
    found["script"] = run("demo-origins")
    found["shell"] = json.loads(os.popen("demo-origins").read())
    print(json.dumps({"found": found, "activation": activation.to_dict()}))
"""


# As transformers does: no finder is asked.
LOADS_BY_FILE = """\
import importlib.util
spec = importlib.util.spec_from_file_location("anything", __file__.replace("loads_", "loaded_"))
spec.loader.exec_module(importlib.util.module_from_spec(spec))
"""


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """A runtime with an overlay that uses everything that installed packages may use."""
    wheels = tmp_path / "wheels"
    native = write_wheel(
        wheels,
        extra={"origins.py": ORIGINS.encode()},
        entry_points="[console_scripts]\ndemo-origins = origins:main\n",
    )
    extra = write_wheel(
        wheels,
        "extra_pkg",
        "3",
        ANY,
        extra={
            "shared_ns/runtime_part.py": b"",
            "demo_plugin.py": b"def register(): pass\n",
            "extra.pth": b"behind_a_pth\nimport demo_start_up\n",
            "early.py": b"",
            "loads_by_file.py": LOADS_BY_FILE.encode(),
            "behind_a_pth/by_pth.py": b"",
            "loaded_by_file.py": b"",
            "demo_start_up.py": b"import os\nos.environ['DEMO_PTH_RAN'] = 'overlay'\n",
        },
        entry_points="[demo.plugins]\nplugin = demo_plugin:register\n",
    )
    shadowed = write_wheel(wheels, "shadowed", "2", ANY)
    published = publish_overlay(tmp_path, native, [extra, shadowed], runtime=SETTINGS)
    monkeypatch.setenv("KVREG_PROFILES", str(tmp_path / "catalogue"))
    for name in (
        "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONPATH", "DEMO_BACKEND",
        "DEMO_LIBRARY", "KVREG_RUNTIME", "KVREG_CONFIG", "KVREG_VERIFY_KEY", "KVREG_HOME",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    return published.pull().runtime


@pytest.fixture
def home(runtime):
    return runtime.folder.parent.parent


@pytest.fixture
def host(tmp_path):
    """A virtual environment with packages of its own; its Python is another file than this one."""
    folder = tmp_path / "host"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next((folder / "lib").glob("python3*/site-packages"))
    for name in ("shadowed", "lonely"):
        wheel = write_wheel(tmp_path / "host-wheels", name, "1", ANY)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    (site / "shared_ns").mkdir()
    (site / "shared_ns/host_part.py").write_text("")
    (site / "sitecustomize.py").write_text("STARTED = True\n")
    # Imports a module of the overlay before any sitecustomize, as that of setuptools does.
    active = "any(path.endswith('/overlay') for path in sys.path)"
    (site / "early.pth").write_text(f"import sys; {active} and __import__('early')\n")
    # The client, as if it were installed there.
    own = {Path(__import__(name).__file__).parents[1] for name in ("kvreg", "click", "packaging")}
    (site / "client.pth").write_text("".join(f"{path}\n" for path in sorted(own)))
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def notebook(host, home, tmp_path, script=NOTEBOOK, code=0, **environment):
    file = tmp_path / "work" / "notebook.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(script)
    ended = subprocess.run(
        [host / "bin" / "python", file, home],
        capture_output=True,
        text=True,
        check=False,
        cwd=file.parent,
        env={**os.environ, **environment},
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return json.loads(ended.stdout) if code == 0 else ended.stderr


def test_everything_that_a_kernel_starts_sees_the_same(host, home, runtime, tmp_path):
    before = tree(host)
    result = notebook(host, home, tmp_path)
    found = result["found"]
    kernel = found["kernel"]
    site, overlay = str(runtime.site), str(runtime.overlay)
    packages = str(next((host / "lib").glob("python3*/site-packages")))
    assert kernel["demo_pkg"] == f"{site}/demo_pkg/__init__.py"
    assert kernel["shadowed"] == f"{overlay}/shadowed/__init__.py"
    assert kernel["by_pth"] == f"{overlay}/behind_a_pth/by_pth.py"
    assert kernel["shared_ns.runtime_part"] == f"{overlay}/shared_ns/runtime_part.py"
    assert kernel["shared_ns.host_part"] == f"{packages}/shared_ns/host_part.py"
    assert kernel["lonely"] == f"{packages}/lonely/__init__.py"
    assert kernel["sitecustomize"] == f"{packages}/sitecustomize.py"
    assert kernel["versions"] == ["2", "1.2+cu128.sm75", "3", "1"]
    assert kernel["entries"] == {"plugin": "demo_plugin"}
    assert kernel["hook"] == ["overlay"]
    assert kernel["path"][:2] == [site, overlay]
    assert set(found) == {"kernel", "spawned", "subprocess", "script", "shell"}
    for where, seen in found.items():
        assert seen == kernel, where
    assert tree(host) == before


@pytest.mark.parametrize("how", ["run", "env"])
def test_commands_see_what_a_kernel_sees(host, home, runtime, tmp_path, how):
    kernel = notebook(host, home, tmp_path)["found"]["kernel"]
    kvreg = [str(host / "bin" / "python"), "-m", "kvreg"]
    work = tmp_path / "work"
    words = [str(host / "bin" / "python"), "-c", "import origins; origins.main()"]
    for command in (["demo-origins"], words):
        if how == "run":
            line = [*kvreg, "run", "--home", str(home), "demo", "--", *command]
        else:
            activate = shlex.join([*kvreg, "env", "demo", "--home", str(home)])
            line = ["sh", "-c", f'eval "$({activate})" && exec {shlex.join(command)}']
        ended = subprocess.run(line, capture_output=True, text=True, check=True, cwd=work)
        assert json.loads(ended.stdout) == kernel


def test_scripts_start_the_interpreter_that_activates(host, home, runtime, tmp_path):
    """The runtime was staged by this test's interpreter, and is activated by the host's."""
    assert f"#!{sys.executable}" in (runtime.site / "bin/demo-origins").read_text()
    script = "import os, sys, kvreg; kvreg.activate('demo', home=sys.argv[1])\n"
    script += "import json, shutil; print(json.dumps(shutil.which('demo-origins')))"
    found = Path(notebook(host, home, tmp_path, script))
    assert found.is_relative_to(home / "startup")
    assert f"exec {host}/bin/python {runtime.site}/bin/demo-origins" in found.read_text()
    # For the interpreter that staged it nothing stands before the runtime's own.
    path = variables(runtime, type("H", (), {"root": home})(), {"PATH": "/bin"})["PATH"]
    assert path == f"{runtime.site}/bin:{runtime.overlay}/bin:/bin"


def test_compiled_files_go_into_the_home_and_hosts_stay_theirs(host, home, runtime, tmp_path):
    notebook(host, home, tmp_path)
    assert not list(runtime.folder.rglob("__pycache__"))
    compiled = {path.name.partition(".")[0] for path in (home / "pycache").rglob("*.pyc")}
    assert {"origins", "by_pth", "runtime_part", "early", "loaded_by_file"} <= compiled
    assert "host_part" not in compiled
    packages = next((host / "lib").glob("python3*/site-packages"))
    assert list((packages / "shared_ns/__pycache__").glob("host_part*"))
    # They are used: a second process changes none of them.
    times = {path: path.stat().st_mtime_ns for path in (home / "pycache").rglob("*.pyc")}
    notebook(host, home, tmp_path)
    assert times == {p: p.stat().st_mtime_ns for p in (home / "pycache").rglob("*.pyc")}


UNDO = """\
import json, os, sys, kvreg
def state():
    from importlib.machinery import SourceFileLoader as loader
    inside = [p for p in sys.path_importer_cache if p.startswith(sys.argv[1])]
    return {"path": list(sys.path), "env": dict(os.environ), "cache": inside,
            "loader": [loader.set_data.__module__, loader.get_data.__module__]}
import kvreg.kernel
os.environ["PATH"] = "/usr/bin:/bin"
os.environ["DEMO_METHOD"] = "mine"
before = state()
activation = kvreg.activate("demo", home=sys.argv[1])
during = state()
again = kvreg.activate("demo", home=sys.argv[1])
twice = state()
import demo_pkg
left = kvreg.deactivate()
after = state()
nothing = kvreg.deactivate()
import shadowed
os.environ["DEMO_BACKEND"] = "set in between"
print(json.dumps([before, during, twice, after, left, nothing, shadowed.__file__,
                  dict(activation.kept)]))
"""


def test_deactivating_undoes_it(host, home, tmp_path):
    before, during, twice, after, left, nothing, shadowed, kept = notebook(
        host, home, tmp_path, UNDO
    )
    assert before["path"] != during["path"]
    assert during["env"]["DEMO_BACKEND"] == "safe"
    assert during["env"]["DEMO_METHOD"] == "mine"
    assert kept == {"DEMO_METHOD": "mine"}
    del during["cache"], twice["cache"]
    assert during == twice, "activating twice is activating once"
    # What a start-up file of the runtime did by itself cannot be undone.
    assert after["env"].pop("DEMO_PTH_RAN") == "overlay"
    assert after == before
    assert left == ["demo_pkg", "demo_start_up"]
    assert nothing == []
    assert shadowed.startswith(str(host))


def test_a_module_that_is_loaded_already_is_named_and_refused(host, home, tmp_path):
    script = "import sys, shadowed, lonely, shared_ns.host_part, kvreg\n"
    script += "kvreg.activate('demo', home=sys.argv[1]{})\n"
    script += "import json, os, demo_pkg; print(json.dumps([shadowed.__file__,"
    script += " kvreg.kernel.active().to_dict()['conflicts']]))"
    said = notebook(host, home, tmp_path, script.format(""), code=1)
    assert "shadowed: is imported already" in said
    assert "lonely:" not in said
    assert "shared_ns" not in said
    assert "restart the kernel" in said
    loaded, conflicts = notebook(host, home, tmp_path, script.format(", force=True"))
    assert loaded.startswith(str(host))
    assert [item["module"] for item in conflicts] == ["shadowed"]


def test_a_refused_activation_changes_nothing(host, home, tmp_path):
    script = "import json, os, sys, shadowed, kvreg\nbefore = sys.path[:], dict(os.environ)\n"
    script += "try:\n    kvreg.activate('demo', home=sys.argv[1])\nexcept Exception as error:\n"
    script += "    print(json.dumps([type(error).__name__,"
    script += " before == (sys.path, dict(os.environ))]))"
    assert notebook(host, home, tmp_path, script) == ["ContractError", True]


def test_what_the_profile_denies_is_refused_everywhere(host, home, runtime, tmp_path, monkeypatch):
    script = "import sys, kvreg; kvreg.activate('demo', home=sys.argv[1])"
    said = notebook(host, home, tmp_path, script, code=1, DEMO_BACKEND="FAST", DEMO_LIBRARY="x")
    assert "DEMO_BACKEND: crashes here (found FAST)" in said
    assert "DEMO_LIBRARY: another library (found x)" in said
    monkeypatch.setenv("DEMO_BACKEND", "fast")
    for words in (["env", "demo"], ["run", "demo", "--", "true"]):
        ended = subprocess.run(
            [sys.executable, "-m", "kvreg", words[0], "--home", home, *words[1:]],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 1
        assert ended.stdout == ""
        assert "unset DEMO_BACKEND" in ended.stderr


def test_env_shows_what_is_set_kept_and_denied(home, runtime, monkeypatch):
    monkeypatch.setenv("DEMO_METHOD", "mine")
    command = [sys.executable, "-m", "kvreg", "env", "demo", "--home", str(home)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "export DEMO_BACKEND=safe\n" in text
    assert "# DEMO_METHOD stays mine, which you set" in text
    text = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout
    result = json.loads(text)
    assert result["set"] == {"DEMO_BACKEND": "safe"}
    assert result["kept"] == {"DEMO_METHOD": "mine"}
    assert [rule["name"] for rule in result["deny"]] == ["DEMO_BACKEND", "DEMO_LIBRARY"]


def test_variables_replace_those_of_another_activation(runtime, home, tmp_path):
    from kvreg.home import Home

    place = Home(home)
    base = {"PYTHONPATH": f"{os.pathsep}/mine", "PATH": "/bin", "DEMO_METHOD": "mine"}
    first = variables(runtime, place, base)
    hook = str(start_up_folder(place))
    assert first["PYTHONPATH"] == f"{hook}:{runtime.site}:{runtime.overlay}:/mine"
    assert first["KVREG_SETTINGS"] == "DEMO_BACKEND"
    assert variables(runtime, place, {**base, **first}) == first
    other = {
        **base,
        **first,
        "KVREG_RUNTIME": "/old/runtimes/abc",
        "PYTHONPATH": "/old/startup/123:/old/runtimes/abc/site:/old/runtimes/abc/overlay:/mine",
        "PATH": "/old/startup/bin-1:/old/runtimes/abc/site/bin:/bin",
    }
    found = variables(runtime, place, other)
    assert found["PYTHONPATH"] == first["PYTHONPATH"]
    assert found["PATH"] == first["PATH"]


def test_a_start_up_file_that_was_changed_is_written_anew(runtime, home):
    from kvreg.home import Home

    path = start_up_folder(Home(home)) / "sitecustomize.py"
    good = path.read_bytes()
    path.write_bytes(b"evil = True\n")
    assert start_up_folder(Home(home)) / "sitecustomize.py" == path
    assert path.read_bytes() == good


def test_another_python_gets_nothing_of_it(host, home, runtime, tmp_path):
    values = variables(runtime, type("H", (), {"root": home})(), os.environ)
    values["KVREG_PYTHON"] = "cpython-39"
    code = "import sys, lonely; print([p for p in sys.path if 'runtimes' in p or 'startup' in p])"
    ended = subprocess.run(
        [host / "bin/python", "-c", code],
        env={**os.environ, **values},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.strip() == "[]"


def test_a_kernel_of_another_python_is_refused(runtime, home, monkeypatch):
    from kvreg import kernel

    monkeypatch.setattr(kernel.sys, "version_info", (3, 9, 0, "final", 0))
    with pytest.raises(ContractError, match="this Python cannot load"):
        kernel.activate("demo", home=home)


def test_the_check_of_the_environment_says_all_at_once(runtime):
    with pytest.raises(ContractError) as caught:
        check_environment(runtime.profile(), {"DEMO_BACKEND": "fast", "DEMO_LIBRARY": ""})
    assert [problem.where for problem in caught.value.problems] == ["DEMO_BACKEND", "DEMO_LIBRARY"]


def test_the_start_up_file_needs_nothing_of_the_client(home, runtime, tmp_path):
    """It runs in interpreters that know no kvreg."""
    values = variables(runtime, type("H", (), {"root": home})(), {})
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    code = "import demo_pkg, sys; print(demo_pkg.__file__, 'kvreg' in sys.modules)"
    ended = subprocess.run(
        [bare / "bin/python", "-c", code], env=values, capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == [str(runtime.site / "demo_pkg/__init__.py"), "False"]
    assert ended.stderr == ""
    shutil.rmtree(bare)


def test_what_of_the_host_would_see_another_version_is_listed(host, home, runtime):
    packages = next((host / "lib").glob("python3*/site-packages"))
    for name, requires in (("happy", "shadowed>=1"), ("broken", "shadowed<2"), ("other", "lonely")):
        info = packages / f"{name}-1.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\nRequires-Dist: {requires}\n"
        text += "Requires-Dist: shadowed<1; extra == 'never'\nRequires-Dist: not a requirement\n"
        (info / "METADATA").write_text(text)
    kvreg = [host / "bin/python", "-m", "kvreg", "env", "demo", "--home", home, "--affected"]
    lines = subprocess.run(kvreg, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines == [
        "broken 1 needs shadowed<2: the host has 1, it would get 2: NOT satisfied",
        "happy 1 needs shadowed>=1: the host has 1, it would get 2: satisfied",
    ]
    rows = json.loads(
        subprocess.run([*kvreg, "--json"], capture_output=True, text=True, check=True).stdout
    )
    assert [row["package"] for row in rows] == ["broken", "happy"]
