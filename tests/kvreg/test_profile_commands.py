"""``kvreg profile`` as its users see it."""

import hashlib
import json

import pytest
from click.testing import CliRunner

from kvreg.cli import COMMANDS, main
from tests.kvreg.profiles import make_profile, write_profile


@pytest.fixture
def kvreg(tmp_path, monkeypatch):
    """Run kvreg with a catalogue that holds ``demo`` and ``other`` first."""
    write_profile(tmp_path / "catalogue")
    write_profile(tmp_path / "catalogue", "other")
    monkeypatch.setenv("KVREG_PROFILES", str(tmp_path / "catalogue"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments, code=0):
        result = CliRunner().invoke(main, list(arguments), catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result

    return run


def test_digest_is_of_the_bytes_that_show_canonical_prints(kvreg):
    digest = kvreg("profile", "digest", "demo").stdout
    raw = kvreg("profile", "show", "demo", "--canonical").stdout_bytes
    assert digest == f"sha256:{hashlib.sha256(raw).hexdigest()}\n"


def test_a_profile_is_named_by_name_path_or_digest(kvreg):
    digest = kvreg("profile", "digest", "demo").stdout.strip()
    for name in ("./catalogue/demo", "catalogue/demo/profile.toml", digest):
        assert kvreg("profile", "digest", name).stdout.strip() == digest


def test_list(kvreg):
    rows = {row["name"]: row for row in json.loads(kvreg("profile", "list", "--json").stdout)}
    assert rows["demo"]["runtime"] == "demo-pkg 1.2+cu128.sm75"
    assert rows["other"]["valid"]
    assert "demo-pkg" in kvreg("profile", "list").stdout


def test_show(kvreg):
    tree = json.loads(kvreg("profile", "show", "demo", "--json").stdout)
    assert tree["host"]["gpu"]["name"] == {"require": "Tesla T4", "validated": "Tesla T4"}
    text = kvreg("profile", "show", "demo").stdout
    assert "580.159.04" in text
    assert "FlashAttention 2" in text


def test_validate_reports_every_fault_and_fails(kvreg, tmp_path):
    write_profile(tmp_path / "catalogue", "bad", role='role = "x"', ptx="ptx = 1")
    (tmp_path / "catalogue/other/source.lock").unlink()
    result = kvreg("profile", "validate", "demo", "bad", "other", code=1)
    for said in ("runtime.role", "build.ptx", "lock file is missing", "valid    demo"):
        assert said in result.output
    results = json.loads(kvreg("profile", "validate", "bad", "--json", code=1).stdout)
    assert len(results[0]["error"]["problems"]) == 2
    kvreg("profile", "validate", "other", "--allow-missing-locks")


def test_an_unknown_profile(kvreg):
    result = kvreg("profile", "show", "nothing", code=3)
    assert {"demo", "other"} <= set(result.stderr.replace(",", "").split())
    error = json.loads(kvreg("profile", "show", "nothing", "--json", code=3).stdout)["error"]
    assert error["kind"] == "not-found"
    kvreg("profile", "show", "./nothing", code=3)
    kvreg("profile", "show", "sha256:" + "0" * 64, code=3)
    kvreg("profile", "show", "sha256:12", code=2)


def test_a_folder_with_another_name_is_not_found_by_that_name(kvreg, tmp_path):
    make_profile(tmp_path / "catalogue", "third")
    (tmp_path / "catalogue/third").rename(tmp_path / "catalogue/fourth")
    assert "third" in kvreg("profile", "show", "fourth", code=2).stderr


def test_one_line_help_is_the_same_in_both_places():
    for entry in COMMANDS.values():
        assert (entry.load().help or "").strip().splitlines()[0] == entry.help


def test_every_command_has_examples():
    def walk(command):
        yield command
        lazy = [entry.load() for entry in getattr(command, "table", {}).values()]
        for child in (*getattr(command, "commands", {}).values(), *lazy):
            yield from walk(child)

    for entry in COMMANDS.values():
        for command in walk(entry.load()):
            assert "Examples:" in (command.help or ""), command.name
