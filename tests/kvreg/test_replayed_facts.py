"""``kvreg --facts FILE COMMAND``: another host stands for this one, but nothing runs on it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvreg.cli import main
from kvreg.errors import ContractError
from kvreg.facts import load
from kvreg.wheel.tags import check_interpreter, parse_wheel_name

GALLERY = Path(__file__).parents[1] / "data" / "facts"
DUAL, ONE, OTHER_PYTHON = (GALLERY / f"{n}.json" for n in ("dual-t4", "one-t4", "wrong-python"))


@pytest.fixture(autouse=True)
def own_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable that the option sets is gone after each test."""
    monkeypatch.setenv("KVREG_FACTS", "")


def kvreg(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(item) for item in arguments])


def test_every_command_judges_the_host_of_the_file() -> None:
    assert kvreg("--facts", DUAL, "doctor", "t4x2-cu128", "--strict").exit_code == 0
    refused = kvreg("--facts", ONE, "doctor", "t4x2-cu128")
    assert refused.exit_code == 1 and "gpu.count" in refused.output
    shown = kvreg("--facts", ONE, "facts", "--json")
    assert json.loads(shown.stdout) == load(ONE).to_dict()


def test_the_variable_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVREG_FACTS", str(DUAL))
    assert kvreg("doctor", "t4x2-cu128", "--strict").exit_code == 0
    assert kvreg("doctor", "t4x2-cu128", "--facts", ONE).exit_code == 1


def test_wheels_are_judged_by_that_hosts_python(monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = parse_wheel_name("demo-1.0-cp312-cp312-manylinux_2_28_x86_64.whl")
    monkeypatch.setenv("KVREG_FACTS", str(DUAL))
    check_interpreter(wheel)
    monkeypatch.setenv("KVREG_FACTS", str(OTHER_PYTHON))
    with pytest.raises(ContractError, match=r"wrong-python\.json") as caught:
        check_interpreter(wheel)
    assert "cp313" in str(caught.value)
    too_new = parse_wheel_name("demo-1.0-cp312-cp312-manylinux_2_39_x86_64.whl")
    monkeypatch.setenv("KVREG_FACTS", str(DUAL))
    with pytest.raises(ContractError, match=r"glibc 2\.35"):
        check_interpreter(too_new)


@pytest.mark.parametrize(
    "command",
    [
        ("run", "t4x2-cu128", "--", "true"),
        ("serve", "t4x2-cu128", "model"),
        ("nccl", "--out", "x.jsonl"),
        ("sweep", "run", "plan.toml", "--out", "x"),
        ("sweep", "gate", "plan.toml", "--out", "x"),
    ],
)
def test_what_would_run_here_refuses(command: tuple[str, ...], tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text("schema = 1\n")
    words = [str(plan) if word == "plan.toml" else word for word in command]
    refused = kvreg("--facts", DUAL, *words)
    assert refused.exit_code == 2, refused.output
    assert "this host" in refused.output and "leave --facts" in refused.output
