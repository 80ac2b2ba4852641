"""``kvreg pull``, ``list``, ``verify``, ``env`` and ``run`` as their users see them."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from kvreg.cli import main
from tests.support.layouts import write_layout

KVREG = [sys.executable, "-m", "kvreg"]
MODULE = {
    "demo_pkg/command.py": b"def main():\n    import demo_pkg\n    print(demo_pkg.__version__)\n"
}


@pytest.fixture
def kvreg(published, monkeypatch):
    """Run kvreg with the home set; `run` in a process of its own, which it gives up."""
    monkeypatch.setenv("KVREG_HOME", str(published.home.root))
    monkeypatch.chdir(published.layout.parent)
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments, code=0, **options):
        words = list(map(str, arguments))
        if words[0] == "run":
            result = subprocess.run(
                [*KVREG, *words], capture_output=True, text=True, check=False, **options
            )
            found = result.returncode
        else:
            result = CliRunner().invoke(main, words, catch_exceptions=False, **options)
            found = result.exit_code
        assert found == code, result.stdout + result.stderr
        return result

    return run


@pytest.fixture
def published(publish):
    entry = "[console_scripts]\ndemo = demo_pkg.command:main\n"
    return publish(extra=MODULE, entry_points=entry)


@pytest.fixture
def staged(kvreg, published):
    kvreg("pull", "demo", "--registry", f"oci-layout:{published.layout}")
    return published.home.runtime(published.profile.digest)


def test_pull_tells_what_it_did_as_text_and_json(kvreg, published):
    reference = f"oci-layout:{published.layout}"
    text = kvreg("pull", "demo", "--registry", reference).stdout
    for said in ("staged: demo", published.profile.digest, "demo_pkg-1.2", "cuda-12.4-debian12"):
        assert said in text
    result = json.loads(kvreg("pull", "demo", "--registry", reference, "--json").stdout)
    assert result["staged"] is False
    assert result["wheels"][0]["name"] == "demo-pkg"
    assert (
        "already staged"
        in kvreg("pull", "demo", env={**os.environ, "KVREG_REGISTRY": reference}).stdout
    )


def test_pull_by_a_digest_that_no_catalogue_knows(kvreg, published, monkeypatch, tmp_path):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("KVREG_PROFILES", str(tmp_path / "empty"))
    reference = f"oci-layout:{published.layout}"
    kvreg("pull", published.profile.digest, "--registry", reference)
    # By name too: the runtime itself knows its profile's name.
    assert "intact" in kvreg("verify", "demo").stdout


def test_a_changed_profile_is_told_what_was_published(kvreg, published, tmp_path):
    (published.layout / "index.json").unlink()
    write_layout(published.layout, published.profile, [(published.wheel, "native")], tag="demo")
    (tmp_path / "catalogue/demo/source.lock").write_text("version = 1\n# changed\n")
    reference = f"oci-layout:{published.layout}"
    result = kvreg("pull", "demo", "--registry", reference, code=3)
    assert f"demo there is of profile digest {published.profile.digest}" in result.stderr
    assert "staged: demo" in kvreg("pull", published.profile.digest, "--registry", reference).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["pull", "demo"], 2, "no registry was named"),
        (["pull", "demo", "--registry", "host.example/Upper"], 2, "lower-case"),
        (["pull", "demo", "--registry", "oci-layout:./nowhere"], 3, "not an OCI image layout"),
        (["pull", "nothing", "--registry", "oci-layout:./nowhere"], 3, "no profile is named"),
        (["pull", "demo", "--registry", "127.0.0.1:1/a"], 4, "cannot be reached"),
        (["verify", "demo"], 3, "not staged"),
        (["run", "demo", "--", "true"], 3, "not staged"),
        (["env", "sha256:12"], 2, "not a digest"),
    ],
)
def test_exit_codes_and_errors(kvreg, arguments, code, said):
    result = kvreg(*arguments, code=code)
    assert said in result.stderr
    assert result.stdout == ""
    if arguments[0] != "run":
        error = json.loads(kvreg(*arguments, "--json", code=code).stdout)["error"]
        assert said in json.dumps(error)
        assert error["exit_code"] == code


def test_a_spoilt_wheel_ends_with_1(kvreg, published, publish):
    def spoil(files):
        files["demo_pkg/data.bin"] = files["demo_pkg/data.bin"][::-1]

    shutil.rmtree(published.layout)
    layout = publish(spoil=spoil).layout
    result = kvreg("pull", "demo", "--registry", f"oci-layout:{layout}", code=1)
    assert "demo_pkg/data.bin: does not match RECORD" in result.stderr


def test_a_home_that_cannot_be_written_ends_with_5(kvreg, published, tmp_path):
    (tmp_path / "file").write_text("")
    reference = f"oci-layout:{published.layout}"
    home = tmp_path / "file" / "home"
    result = kvreg("pull", "demo", "--registry", reference, "--home", home, code=5)
    assert "error:" in result.stderr


def test_list(kvreg, published):
    assert "no runtime" in kvreg("list").stdout
    kvreg("pull", "demo", "--registry", f"oci-layout:{published.layout}")
    (row,) = json.loads(kvreg("list", "--json").stdout)
    assert row["profile"]["digest"] == published.profile.digest
    assert published.profile.digest in kvreg("list").stdout
    (published.home.runtime(published.profile.digest) / "runtime.json").write_text("{")
    assert "damaged" in kvreg("list").stdout


def test_verify_names_what_differs(kvreg, staged):
    assert "intact" in kvreg("verify", "demo").stdout
    site = staged / "site"
    (site / "demo_pkg/added.py").write_text("")
    (site / "demo_pkg/data.bin").write_bytes(b"\0" * (256 * 40))
    (site / "demo_pkg/command.py").unlink()
    (site / "demo_pkg/__init__.py").unlink()
    (site / "demo_pkg/__init__.py").symlink_to("data.bin")
    report = json.loads(kvreg("verify", "demo", "--json", code=1).stdout)
    assert report["ok"] is False
    assert report["added"] == ["demo_pkg/added.py"]
    assert report["changed"] == ["demo_pkg/__init__.py", "demo_pkg/data.bin"]
    assert report["missing"] == ["demo_pkg/command.py"]
    text = kvreg("verify", "demo", code=1).stdout
    assert "changed  demo_pkg/data.bin" in text


def test_verify_does_not_trust_a_record_that_was_changed_along(kvreg, staged):
    record = next(staged.glob("site/*.dist-info/RECORD"))
    record.write_text(record.read_text().replace("demo_pkg/data.bin", "demo_pkg/atad.bin"))
    assert "RECORD was changed" in kvreg("verify", "demo", code=1).stderr


def test_run_uses_the_runtime_and_leaves_it_as_it_was(kvreg, staged, published):
    script = (
        "import demo_pkg, os, sys; print(demo_pkg.__file__);"
        "print(os.environ['KVREG_PROFILE'], os.environ['KVREG_PROFILE_DIGEST'])"
    )
    lines = kvreg("run", "demo", "--", sys.executable, "-c", script).stdout.splitlines()
    assert lines[0] == str(staged / "site/demo_pkg/__init__.py")
    assert lines[1] == f"demo {published.profile.digest}"
    assert kvreg("run", "demo", "--", "demo").stdout.strip() == "1.2+cu128.sm75"
    assert "intact" in kvreg("verify", "demo").stdout
    # The compiled file went into the home instead.
    assert list((published.home.root / "pycache").rglob("demo_pkg/__pycache__/*.pyc"))


def test_a_damaged_runtime_does_not_hide_the_others(
    kvreg, staged, published, monkeypatch, tmp_path
):
    (published.home.runtimes / ("0" * 64)).mkdir()
    (published.home.runtimes / ("0" * 64) / "runtime.json").write_text("{")
    monkeypatch.setenv("KVREG_PROFILES", str(tmp_path))
    assert kvreg("run", "demo", "--", "demo").stdout.strip() == "1.2+cu128.sm75"


def test_run_passes_arguments_exit_code_and_input_through(kvreg, staged, published):
    command = ["sh", "-c", 'cat; echo "$0 $1"; exit 7', "--a", "b c"]
    home = ["--home", published.home.root]
    result = kvreg("run", "demo", *home, "--", *command, code=7, input="in\n")
    assert result.stdout == "in\n--a b c\n"
    assert "no command" in kvreg("run", "demo", "--", "no-such-program", code=3).stderr


def test_env_can_be_evaluated_by_a_shell(kvreg, staged):
    exports = kvreg("env", "demo").stdout
    result = json.loads(kvreg("env", "demo", "--json").stdout)
    assert set(result["variables"]) == {
        "PYTHONPATH", "PATH", "KVREG_PROFILE", "KVREG_PROFILE_DIGEST", "KVREG_MANIFEST_DIGEST",
        "KVREG_RUNTIME", "KVREG_PYTHON", "KVREG_PYCACHE", "KVREG_SETTINGS", "PYTHONPYCACHEPREFIX",
    }  # fmt: skip
    script = exports + "\ndemo"
    output = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "1.2+cu128.sm75"
