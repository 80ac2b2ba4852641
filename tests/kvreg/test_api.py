"""The functions that notebooks call: what importing costs, how names and modules get on."""

import importlib
import inspect
import subprocess
import sys
import types

import pytest

import kvreg
from kvreg import api
from kvreg.console import in_notebook, progress
from kvreg.errors import NotFoundError
from kvreg.pull import Pulled
from kvreg.runtime import Runtime


def python(script, **options):
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, **options
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_a_pull_and_its_runtime(published, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("KVREG_HOME", str(tmp_path / "elsewhere"))
    home = published.home.root
    pulled = kvreg.pull("demo", registry=f"oci-layout:{published.layout}", home=str(home))
    assert isinstance(pulled, Pulled)
    assert pulled.staged
    found = kvreg.runtime("demo", home=home)
    assert isinstance(found, Runtime)
    assert found == pulled.runtime
    with pytest.raises(NotFoundError, match="not staged"):
        kvreg.runtime("demo")
    assert capsys.readouterr().out == ""
    # Nothing but the home is written: no lock file that nobody asked for.
    assert not (tmp_path / "kvreg.lock").exists()


@pytest.mark.parametrize("name", sorted(kvreg._API))
def test_every_name_of_the_api_is_there_and_documented(name):
    value = getattr(kvreg, name)
    assert callable(value)
    module, attribute = kvreg._API[name]
    function = getattr(importlib.import_module(module), attribute)
    assert inspect.getdoc(function)
    if inspect.isfunction(function):
        signature = inspect.signature(function)
        assert signature.return_annotation is not inspect.Signature.empty
    assert name in dir(kvreg)


def test_names_that_are_modules_too_can_be_called_either_way():
    """The import system binds `kvreg.pull` to the module of that name; it stays the function."""
    script = (
        "import kvreg; first = callable(kvreg.runtime); import kvreg.runtime as module;"
        "from kvreg.runtime import Runtime; import types;"
        "print(first, isinstance(module, types.ModuleType), callable(kvreg.runtime),"
        "module.Runtime is Runtime is kvreg.runtime.Runtime)\n"
        "try: kvreg.runtime('nothing-like-it', home='/nonexistent')\n"
        "except Exception as error: print(type(error).__name__)"
    )
    assert python(script) == ["True", "True", "True", "True", "NotFoundError"]


def test_other_names_are_no_attributes():
    with pytest.raises(AttributeError, match="no attribute 'push'"):
        kvreg.push  # noqa: B018


def test_signatures_are_those_of_the_commands():
    from kvreg.cli import COMMANDS

    options = {parameter.name for parameter in COMMANDS["pull"].load().params}
    # A library shows bars unless told not to, and writes no lock unless told to.
    ours = set(inspect.signature(api.pull).parameters)
    assert options - ours == {"no_lock", "as_json"}
    assert ours - options == {"progress"}


def test_help_imports_nothing_heavy():
    script = (
        "import sys; sys.argv = ['kvreg', '--help']\n"
        "from kvreg.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('MODULES', *sys.modules)"
    )
    words = python(script)
    loaded = set(words[words.index("MODULES") + 1 :])
    ours = {name for name in loaded if name.startswith("kvreg")}
    assert ours <= {"kvreg", "kvreg.cli", "kvreg.lazy", "kvreg.program"}
    heavy = {"urllib3", "tqdm", "packaging", "numpy", "ssl", "zipfile", "json", "asyncio", "http"}
    assert not loaded & heavy


@pytest.fixture
def kernel(monkeypatch):
    """What a notebook's kernel looks like to us."""
    shell = types.SimpleNamespace(config={"IPKernelApp": {}})
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: shell
    monkeypatch.setitem(sys.modules, "IPython", module)
    return shell


def test_progress_is_shown_in_notebooks_and_silent_in_pipes(kernel, capsys):
    assert in_notebook()
    with progress(2048, "fetch") as bar:
        bar.update(1024)
        assert not bar.disable
    kernel.config = {}
    assert not in_notebook()
    with progress(2048, "fetch") as bar:
        assert bar.disable
    assert "fetch" in capsys.readouterr().err


def test_ipython_is_not_imported_to_ask(published):
    script = (
        "import sys; from kvreg.console import progress; progress(5, 'x').close();"
        "print('IPython' in sys.modules, 'asyncio' in sys.modules)"
    )
    assert python(script) == ["False", "False"]
