"""``resolve``, ``show``, ``which``, ``remove``, ``gc``, ``completion`` as users see them."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from kvreg.cli import main
from kvreg.garbage import collect
from kvreg.lockfile import Lockfile, read_lockfile
from kvreg.model.digest import sha256_bytes
from kvreg.usage import users
from tests.support.layouts import runtime_manifest, write_layout

MODULE = {
    "demo_pkg/command.py": b"def main():\n    import demo_pkg\n    print(demo_pkg.__version__)\n",
    "demo_pkg/_native.abi3.so": b"\x7fELF, as it were",
    "demo_pkg/lib/libdemo.so.3": b"\x7fELF, too",
    "yaml/__init__.py": b"",
}


@pytest.fixture
def published(publish):
    entry = "[console_scripts]\ndemo = demo_pkg.command:main\n"
    return publish(extra=MODULE, entry_points=entry)


@pytest.fixture
def kvreg(published, monkeypatch, tmp_path):
    """Run kvreg in a directory of its own, with the home set."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("KVREG_HOME", str(published.home.root))
    monkeypatch.setenv("KVREG_REGISTRY", f"oci-layout:{published.layout}")

    def run(*arguments, code=0, **options):
        words = list(map(str, arguments))
        result = CliRunner().invoke(main, words, catch_exceptions=False, **options)
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def staged(kvreg, published):
    kvreg("pull", "demo")
    return published.home.runtime(published.profile.digest)


def data(result):
    return json.loads(result.stdout)


# -- resolve and show -------------------------------------------------------------------------


def test_resolve_says_what_where_and_what_for(kvreg, published):
    found = data(kvreg("resolve", "demo", "--json"))
    assert found["manifest"] == sha256_bytes(published.manifest.to_bytes())
    assert found["profile"] == published.profile.digest
    assert found["origin"] == "$KVREG_REGISTRY"
    assert found["blobs"] == {published.wheel.name: published.manifest.layers[0].digest}
    assert found["size"] == published.wheel.stat().st_size
    assert (found["staged"], found["lock"]["state"]) == (False, "absent")
    assert published.left() == []
    kvreg("pull", "demo")
    text = kvreg("resolve", "demo").stdout
    assert "staged    yes" in text
    assert "locked to this artifact" in text


def test_resolve_tells_of_a_moved_tag(kvreg, published, staged):
    old = read_lockfile(staged.parents[2] / "work/kvreg.lock").entries["demo"].manifest
    again = runtime_manifest(published.profile, [(published.wheel, "native")], {"built": "again"})
    (published.layout / "index.json").unlink()
    write_layout(published.layout, published.profile, [], manifest=again)
    found = data(kvreg("resolve", "demo", "--json"))
    assert found["lock"] == {"state": "moved", "manifest": old}
    assert not found["staged"]
    result = kvreg("resolve", "demo", "--locked", code=1)
    assert old in result.stderr
    assert found["manifest"] in result.stderr


def test_show_an_artifact_before_and_after_it_is_staged(kvreg, published):
    before = kvreg("show", "demo").stdout
    for said in (published.profile.digest, published.wheel.name, "staged    no", "==2.10.0"):
        assert said in before
    kvreg("pull", "demo")
    shutil.rmtree(published.layout)
    page = data(kvreg("show", "demo", "--json"))
    assert page["staged"]["folder"] == str(published.home.runtime(published.profile.digest))
    assert page["resolution"]["origin"] == "staged"
    (wheel,) = page["wheels"]
    assert wheel["size"] == published.wheel.stat().st_size
    assert page["profile"]["host"]["torch"]["validated"]
    text = kvreg("show", "demo").stdout
    assert "not checked" in text
    assert "locked to this artifact" in text
    # What is elsewhere can still be asked for.
    kvreg("show", "demo", "--registry", f"oci-layout:{published.layout}", code=3)


# -- which ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "path"),
    [
        ("demo", "script", "bin/demo"),
        ("demo_pkg", "module", "demo_pkg/__init__.py"),
        ("demo_pkg.command", "module", "demo_pkg/command.py"),
        ("demo_pkg._native", "module", "demo_pkg/_native.abi3.so"),
        ("_native.abi3.so", "library", "demo_pkg/_native.abi3.so"),
        ("libdemo.so", "library", "demo_pkg/lib/libdemo.so.3"),
        ("libdemo.so.3", "library", "demo_pkg/lib/libdemo.so.3"),
        ("demo_pkg/data.bin", "file", "demo_pkg/data.bin"),
    ],
)
def test_which_finds(kvreg, staged, name, kind, path):
    (item,) = data(kvreg("which", "demo", name, "--json"))
    assert (item["kind"], item["path"]) == (kind, str(staged / "site" / path))
    assert item["wheel"].startswith("demo_pkg-1.2")
    assert item["path"] in kvreg("which", "demo", name).stdout


def test_which_says_what_it_hides_and_what_it_does_not_find(kvreg, staged, tmp_path, monkeypatch):
    (tmp_path / "yaml.py").write_text("host = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    (item,) = data(kvreg("which", "demo", "yaml", "--json"))
    assert item["hides"] == str(tmp_path / "yaml.py")
    assert "which is the host's" in kvreg("which", "demo", "yaml").stdout
    assert "has no nothing" in kvreg("which", "demo", "nothing", code=3).stderr
    # A prefix is not a module.
    kvreg("which", "demo", "demo_pkg.comm", code=3)


# -- remove -----------------------------------------------------------------------------------


def test_remove_asks_and_says_what_it_freed(kvreg, staged, published):
    assert "nobody can be asked" in kvreg("remove", "demo", code=2).stderr
    assert staged.is_dir()
    size = sum(path.stat().st_size for path in staged.rglob("*") if path.is_file())
    result = data(kvreg("remove", "demo", "--yes", "--json"))
    assert result["bytes"] == size
    assert not staged.exists()
    assert not list(published.home.runtimes.iterdir())
    assert "not staged" in kvreg("remove", "demo", "--yes", code=3).stderr
    # The blobs stayed where they were fetched to: nothing else was touched.
    assert kvreg("pull", "demo").stdout.startswith("staged: demo")


def test_remove_takes_damaged_runtimes_and_profiles_that_are_not_known(
    kvreg, staged, published, monkeypatch, tmp_path
):
    (staged / "runtime.json").write_text("{")
    kvreg("remove", "demo", "--yes")
    assert not staged.exists()
    kvreg("pull", "demo")
    (tmp_path / "none").mkdir()
    monkeypatch.setenv("KVREG_PROFILES", str(tmp_path / "none"))
    kvreg("remove", "demo", "-y")
    assert not staged.exists()


@pytest.mark.parametrize("way", ["environment", "mapped", "working directory"])
def test_what_is_in_use_is_not_removed(kvreg, staged, way):
    script, options = "import sys; print(1, flush=True); sys.stdin.read()", {}
    if way == "environment":
        options["env"] = {**os.environ, "KVREG_RUNTIME": str(staged)}
    elif way == "mapped":
        path = staged / "site/demo_pkg/_native.abi3.so"
        script = (
            f"import mmap; f = open({str(path)!r}); m = mmap.mmap(f.fileno(), 0, prot=1);{script}"
        )
    else:
        options["cwd"] = staged / "site"
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options
    )
    try:
        child.stdout.readline()
        assert [user.pid for user in users(staged)] == [child.pid]
        error = kvreg("remove", "demo", "--yes", code=1).stderr
        assert str(child.pid) in error
        assert "--force" in error
        assert staged.is_dir()
        kvreg("remove", "demo", "--yes", "--force")
        assert not staged.exists()
    finally:
        child.communicate()


# -- gc ---------------------------------------------------------------------------------------


def kinds(result):
    return sorted(item["kind"] for item in data(result)["items"])


def age(path, hours=48):
    then = time.time() - hours * 3600
    os.utime(path, (then, then))


@pytest.fixture
def littered(kvreg, staged, published, faulty):
    """A home with everything that is garbage, and everything that is not."""
    kvreg("remove", "demo", "--yes")
    kvreg("pull", "demo", "--registry", faulty.reference)
    home = published.home
    blobs = home.root / "blobs/sha256"
    for name in ("a" * 64, "b" * 64 + ".partial"):
        (blobs / name).write_bytes(bytes(1000))
        age(blobs / name)
    (blobs / ("c" * 64)).write_bytes(b"young")
    (home.runtimes / f".staging-{'d' * 64}/site").mkdir(parents=True)
    (home.runtimes / f".staging-{'d' * 64}/site/file").write_bytes(bytes(500))
    for source in (staged / "site/demo_pkg/command", staged.parent / "gone/site/x"):
        compiled = home.pycache / source.relative_to("/").parent / "__pycache__"
        compiled.mkdir(parents=True)
        (compiled / f"{source.name}.cpython-312.pyc").write_bytes(bytes(100))
    return blobs


def test_gc_shows_first_and_deletes_what_nothing_needs(kvreg, littered, published):
    before = sorted(published.home.root.rglob("*"))
    found = kvreg("gc", "--json")
    assert kinds(found) == ["blob", "partial", "pycache", "staging"]
    assert data(found)["bytes"] == 1000 + 1000 + 500 + 100
    assert (data(found)["young"], data(found)["deleted"]) == (1, False)
    assert sorted(published.home.root.rglob("*")) == before
    assert "would free 2.5 KiB" in kvreg("gc").stdout
    assert "freed 2.5 KiB" in kvreg("gc", "--delete").stdout
    assert kinds(kvreg("gc", "--json")) == []
    assert (littered / ("c" * 64)).exists()
    assert not (published.home.pycache / str(published.home.runtimes / "gone")[1:]).exists()
    # What is staged is whole, with what it needs, and runs from its compiled files.
    assert "intact" in kvreg("verify", "demo").stdout
    shutil.rmtree(published.layout)
    assert "already staged" in kvreg("pull", "demo").stdout
    assert list(published.home.pycache.rglob("command.cpython-312.pyc"))


def test_gc_keeps_what_a_lock_names(kvreg, littered, published, tmp_path):
    kvreg("remove", "demo", "--yes")
    needed = {path.name for path in littered.iterdir() if len(path.name) == 64}
    needed -= {letter * 64 for letter in "abc"}
    assert len(needed) == 3  # wheel, profile, manifest
    kept = data(kvreg("gc", "--older-than", "0", "--json"))
    assert not needed & {item["path"].rpartition("/")[2] for item in kept["items"]}
    lock = tmp_path / "work/kvreg.lock"
    lock.rename(tmp_path / "other.lock")
    other = data(kvreg("gc", "--older-than", "0", "--lock", tmp_path / "other.lock", "--json"))
    assert other["items"] == kept["items"]
    gone = data(kvreg("gc", "--older-than", "0", "--delete", "--json"))
    assert needed < {item["path"].rpartition("/")[2] for item in gone["items"]}
    assert not list(littered.iterdir())


def test_gc_keeps_all_blobs_while_a_runtime_cannot_say_what_it_needs(kvreg, littered, staged):
    (staged / "runtime.json").write_text("{")
    found = kvreg("gc", "--older-than", "0", "--json")
    assert kinds(found) == ["partial", "pycache", "staging"]
    assert data(found)["damaged"] == [str(staged)]


def test_gc_waits_for_no_pull(kvreg, littered, published):
    with published.home.lock("store", shared=True):
        assert "a pull is running" in kvreg("gc", "--delete", code=1).stderr
    # Pulls do not exclude each other.
    with published.home.lock("store", shared=True):
        assert "already staged" in kvreg("pull", "demo").stdout


def test_gc_of_a_home_that_is_not_there(tmp_path):
    from kvreg.home import Home

    assert collect(Home(tmp_path / "home"), [Lockfile()]).items == ()


# -- completion -------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(kvreg, shell):
    script = kvreg("completion", shell).stdout
    assert "_KVREG_COMPLETE" in script
    assert kvreg("completion", env={"SHELL": f"/bin/{shell}"}).stdout == script
    if shutil.which(shell):
        check = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True)
        assert check.returncode == 0, check.stderr


def test_completion_of_a_shell_that_is_not_known(kvreg):
    assert "bash, zsh, fish" in kvreg("completion", env={"SHELL": "/bin/tcsh"}, code=2).stderr


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("kvreg re", ["resolve", "remove"]),
        ("kvreg pull d", ["demo"]),
        ("kvreg gc --d", ["--delete"]),
    ],
)
def test_what_bash_is_offered(kvreg, published, words, offered):
    variables = {
        "_KVREG_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    program = [sys.executable, "-c", "from kvreg.cli import main; main(prog_name='kvreg')"]
    result = subprocess.run(
        program, env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    found = [line.partition(",")[2] for line in result.stdout.splitlines()]
    assert sorted(found) == sorted(offered)
