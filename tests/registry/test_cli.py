"""The command `registry` as a user runs it: results, JSON, help, exit codes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from registry.cli import main
from tests.kvreg.profiles import write_profile
from tests.registry.samples import push_artifact
from tests.support.distribution import PASSWORD, USER, Distribution


def run(*arguments: object, env: dict[str, str] | None = None) -> Result:
    return CliRunner(env=env).invoke(main, [str(item) for item in arguments])


def run_json(*arguments: object, code: int = 0) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


@pytest.fixture
def pushed(tmp_path: Path, wheel: Path) -> str:
    """A layout with the artifact ``demo``."""
    store = f"oci-layout:{tmp_path}/layout"
    folder = write_profile(tmp_path / "for-push")
    result = run("push", store, "--profile", folder, "--wheel", wheel, "--date", "2026-11-30")
    assert result.exit_code == 0, result.output
    return store


def test_the_whole_way(pushed: str, distribution: Distribution, repository: str) -> None:
    remote = f"{distribution.host}/{repository}"
    assert run("tags", pushed).output.split()[:2] == ["demo", "demo-v1.2-20261130"]
    digest = run("resolve", f"{pushed}:demo").output.strip()
    assert digest.startswith("sha256:")
    copied = run_json("copy", f"{pushed}:demo", remote)
    assert copied["digest"] == digest
    assert copied["blobsCopied"] == 2
    assert run_json("resolve", f"{remote}:demo")["digest"] == digest
    assert run("resolve", f"{remote}@{digest}").output.strip() == digest
    page = run("show", f"{remote}:demo")
    assert "demo-pkg 1.2+cu128.sm75" in page.output
    assert ".whl (native)" in page.output
    data = run_json("show", f"{remote}:demo")
    assert data["profile"]["name"] == "demo"
    assert data["config"]["digest"] == data_digest(data)
    raw = run("show", "--raw", f"{remote}:demo").stdout_bytes
    assert json.loads(raw)["layers"] == data["layers"]
    report = run_json("verify", f"{remote}:demo")
    assert report["ok"]
    assert run("verify", f"{remote}:demo").output.strip().endswith("hashed")
    assert run_json("referrers", f"{remote}:demo") == []


def data_digest(data: dict[str, Any]) -> str:
    from kvreg.model.canonical import canonical_json
    from kvreg.model.digest import sha256_bytes

    return sha256_bytes(canonical_json(data["profile"]))


def test_referrers(tmp_path: Path) -> None:
    from registry.attach import attach
    from registry.layout import Layout

    layout = Layout(tmp_path / "layout")
    subject = push_artifact(layout, "one").descriptor()
    attach(layout, subject, "application/x-a", b"a", "a")
    attach(layout, subject, "application/x-b", b"b", "b")
    assert len(run("referrers", f"{layout.location}:one").output.splitlines()) == 2
    (found,) = run_json("referrers", f"{layout.location}:one", "--artifact-type", "application/x-a")
    assert found["artifactType"] == "application/x-a"


def test_verify_fails_with_exit_code_1_and_still_reports(pushed: str, tmp_path: Path) -> None:
    (layer,) = run_json("show", f"{pushed}:demo")["layers"]
    path = tmp_path / "layout" / "blobs" / "sha256" / layer["digest"].removeprefix("sha256:")
    path.write_bytes(b"\0" * layer["size"])
    result = run("verify", f"{pushed}:demo")
    assert result.exit_code == 1
    assert "corrupt" in result.output
    assert "1 of 3 parts are wrong" in result.output
    assert run_json("verify", f"{pushed}:demo", code=1)["ok"] is False


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (["resolve", "ghcr.io/Team/x:1"], 2, "usage"),
        (["resolve", "oci-layout:absent:one"], 3, "not-found"),
        (["verify", "127.0.0.1:9/x/y"], 2, "usage"),
        (["tags", "no.such.host.invalid/x/y"], 4, "network"),
    ],
)
def test_exit_codes(arguments: list[str], code: int, kind: str) -> None:
    assert run(*arguments).exit_code == code
    assert run_json(*arguments, code=code)["error"]["kind"] == kind


def test_a_store_is_no_artifact(pushed: str) -> None:
    result = run("verify", pushed)
    assert result.exit_code == 2
    assert f"registry ls {pushed}" in result.output


def test_credentials_from_the_environment(
    distribution_with_login: Distribution, pushed: str, repository: str
) -> None:
    target = f"{distribution_with_login.host}/{repository}"
    result = run("copy", f"{pushed}:demo", target)
    assert result.exit_code == 4
    assert "absent or private" in result.output
    env = {"KVREG_REGISTRY_USERNAME": USER, "KVREG_REGISTRY_PASSWORD": PASSWORD}
    assert run("copy", f"{pushed}:demo", target, env=env).exit_code == 0
    result = run("copy", f"{target}:demo", "other.example/x", env=env)
    assert result.exit_code == 2
    assert "KVREG_REGISTRY_HOST" in result.output


def test_every_command_shows_examples() -> None:
    assert "Examples:" in run("--help").output
    for name, command in main.commands.items():
        text = run(name, "--help").output
        assert f"registry {name}" in text
        assert "--json" in text
        assert command.help


def test_the_installed_command() -> None:
    program = "from registry.cli import main; main(prog_name='registry')"
    done = subprocess.run(
        [sys.executable, "-c", program, "--version"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    assert done.stdout.startswith("registry, version ")
