"""`builder toolchain`, as it is typed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from builder.commands.toolchain import toolchain
from builder.engine import Engine
from builder.toolchain import ToolchainImage
from tests.support.toolchain import TOOLCHAIN, engine, toolchain_image

__all__ = ["engine", "toolchain_image"]

OTHER = "cuda-12.8.1-ubuntu22.04"


def _invoke(*arguments: str) -> Result:
    return CliRunner().invoke(toolchain, list(arguments))


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")


def test_help_has_examples() -> None:
    for command in ([], ["list"], ["show"], ["build"], ["lock"]):
        result = _invoke(*command, "--help")
        assert result.exit_code == 0
        assert "builder toolchain" in result.output and "Examples:" in result.output


@pytest.mark.usefixtures("no_engine")
def test_definitions_are_shown_without_an_engine() -> None:
    result = _invoke("list", "--json")
    assert result.exit_code == 0
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert rows[TOOLCHAIN]["cuda"] == "12.4.131" and rows[TOOLCHAIN]["image"] is None
    assert "no container engine answers" in result.stderr
    result = _invoke("show", OTHER)
    assert result.exit_code == 0
    assert "nvidia/cuda:12.8.1-devel-ubuntu22.04" in result.stdout
    assert result.stdout.count("sha256:") == 3  # two digests of the base, one of the inputs
    assert f"builder toolchain build {OTHER}" in result.stdout


@pytest.mark.usefixtures("no_engine")
def test_building_without_an_engine_says_what_was_tried() -> None:
    result = _invoke("build", TOOLCHAIN, "--json")
    assert result.exit_code == 3
    error = json.loads(result.stdout)["error"]
    assert error["what"] == "no container engine answers"
    assert "none.sock" in error["problems"][0]["where"]


def test_an_unknown_toolchain_is_not_found() -> None:
    for command in ("show", "build", "lock"):
        result = _invoke(command, "cuda-1.0")
        assert result.exit_code == 3
        assert TOOLCHAIN in result.stderr


def test_a_pulled_toolchain_has_no_packages_to_lock() -> None:
    result = _invoke("lock", OTHER)
    assert result.exit_code == 2
    assert "kind debootstrap" in result.stderr


@pytest.mark.engine
def test_building_what_is_there_does_nothing(
    engine: Engine, toolchain_image: ToolchainImage
) -> None:
    result = _invoke("build", TOOLCHAIN, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["image_digest"] == toolchain_image.image_digest
    assert result.stderr == ""
    result = _invoke("show", TOOLCHAIN)
    assert toolchain_image.image_digest in result.stdout
    assert "nvcc 12.4.131" in result.stdout and "base packages differ" in result.stdout
    assert toolchain_image.image_digest[:19] in _invoke("list").stdout
