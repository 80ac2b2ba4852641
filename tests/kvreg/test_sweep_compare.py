"""``kvreg sweep compare``: one variable, or a refusal that names the others."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("scipy")

from kvreg.analysis.table import CellRow, cells_csv
from kvreg.cli import main
from kvreg.sweep.presets import read_preset
from tests.support.studies import m4_rows, results_of, study, write_sweep

T4 = {
    "gpus": [
        {
            "index": index,
            "name": "Tesla T4",
            "compute_capability": "7.5",
            "memory_mib": 15360,
            "free_mib": 15000 + index,
            "visible": True,
        }
        for index in (0, 1)
    ],
    "topology": [["X", "PHB"], ["PHB", "X"]],
    "driver": {"version": "580.159.04"},
    "torch": {"version": "2.10.0+cu128"},
}
L4 = {**T4, "gpus": [{**gpu, "name": "NVIDIA L4"} for gpu in T4["gpus"]]}


def compare(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(
        main, ["sweep", "compare", *map(str, words)], catch_exceptions=False
    )
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def sweep(tmp_path: Path):
    def make(
        name: str,
        rows: list[CellRow] | None = None,
        facts: dict | None = T4,
        plan: bytes | None = None,
        **identity: object,
    ) -> Path:
        return write_sweep(
            tmp_path / name,
            plan or read_preset("m4"),
            results_of(rows or m4_rows()),
            facts=facts,
            identity=identity,
        )

    return make


def test_other_gpu_is_found_to_be_the_variable(sweep) -> None:
    slow, fast = m4_rows(1), m4_rows(2)
    fast = [
        CellRow(**{**vars(row), "output_tokens_per_s": row.output_tokens_per_s * 1.5})
        if row.output_tokens_per_s
        else row
        for row in fast
    ]
    a, b = sweep("a", slow), sweep("b", fast, facts=L4)
    data = json.loads(compare(a, b, "--json").stdout)
    assert data["variable"] == "gpu"
    assert [item["key"] for item in data["differences"]] == ["facts.gpus"]
    assert len(data["arms"]) == 144 and len(data["crossovers"]) == 12
    measured = [arm for arm in data["arms"] if not arm["gated"]]
    rates = [arm["metrics"]["output_tokens_per_s"] for arm in measured]
    assert all(rate["verdict"] == "favourable" for rate in rates)
    assert sum(rate["ratio"] for rate in rates) / len(rates) == pytest.approx(1.5, rel=0.02)
    assert len(data["arms"]) - len(measured) == 1
    text = compare(a, b).stdout
    assert "under study: gpu" in text and "RESOURCE_GATED@64" in text


def test_more_than_one_difference_is_refused_and_every_one_named(sweep) -> None:
    driver = {**L4, "driver": {"version": "590.1"}}
    plan = read_preset("m4").replace(
        b"gpu-memory-utilization = 0.9", b"gpu-memory-utilization = 0.8"
    )
    a, b = sweep("a"), sweep("b", facts=driver, plan=plan)
    error = json.loads(compare(a, b, "--json", code=1).stdout)["error"]
    assert {problem["where"] for problem in error["problems"]} == {
        "facts.gpus",
        "facts.driver.version",
        "plan.engine.options.gpu-memory-utilization",
    }
    assert "--allow driver" in error["remedy"] and "--allow settings" in error["remedy"]
    compare(a, b, "--variable", "gpu", "--allow", "driver", code=1)
    told = compare(
        a,
        b,
        "--variable",
        "gpu",
        "--allow",
        "driver",
        "--allow",
        "plan.engine.options.gpu-memory-utilization",
    ).stdout
    assert "under study: gpu" in told
    assert "facts.driver.version (driver): 580.159.04 / 590.1, allowed" in told


@pytest.mark.parametrize(
    ("change", "group"),
    [
        ({"facts": {**T4, "topology": [["X", "NV1"], ["NV1", "X"]]}}, "interconnect"),
        ({"engine": {"command": ["vllm", "serve"], "version": "0.19.0"}}, "runtime"),
        ({"artifact": "sha256:" + "d" * 64}, "runtime"),
        ({"facts": {**T4, "torch": {"version": "2.11.0+cu128"}}}, "host"),
        ({"plan": read_preset("m4").replace(b"= 14848", b"= 15000")}, "boundary"),
        ({"plan": read_preset("m4").replace(b"20260104", b"20260999")}, "design"),
        (
            {"plan": read_preset("m4").replace(b"max_requests = 256", b"max_requests = 512")},
            "protocol",
        ),
        ({"plan": read_preset("m4").replace(b"cfbefacb", b"cfbefacc")}, "model"),
    ],
)
def test_groups(sweep, change: dict, group: str) -> None:
    a, b = sweep("a"), sweep("b", **change)
    assert json.loads(compare(a, b, "--json").stdout)["variable"] == group
    other = "gpu" if group != "gpu" else "driver"
    compare(a, b, "--variable", other, code=1)


def test_free_memory_names_and_expected_durations_are_no_conditions(sweep) -> None:
    plan = read_preset("m4").replace(b"measure_s = 25", b"measure_s = 30")
    busy = {**T4, "gpus": [{**gpu, "free_mib": 1} for gpu in T4["gpus"]]}
    data = json.loads(compare(sweep("a"), sweep("b", facts=busy, plan=plan), "--json").stdout)
    assert data["variable"] is None and data["differences"] == []


def test_what_is_not_recorded_is_not_equal(sweep) -> None:
    a, b = sweep("a"), sweep("b", facts=None)
    assert "facts.gpus" in compare(a, b, code=1).stderr
    compare(a, b, "--allow", "unknown")
    c = sweep("c", facts=None)
    assert "not recorded" in compare(b, c, code=1).stderr


def test_bare_tables_show_no_conditions(tmp_path: Path) -> None:
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    a.write_text(cells_csv(study({8: {1: [1.0, 2.0], 2: [3.0, 4.0]}})))
    b.write_text(cells_csv(study({8: {1: [1.0, 2.0], 2: [9.0, 10.0]}})))
    assert "--allow unknown" in compare(a, b, code=1).stderr
    data = json.loads(compare(a, b, "--allow", "unknown", "--json").stdout)
    ratios = [arm["metrics"]["output_tokens_per_s"]["ratio"] for arm in data["arms"]]
    assert ratios == [1.0, pytest.approx(9.5 / 3.5)]


def test_a_variable_that_does_not_differ_and_one_that_does_not_exist(sweep) -> None:
    a, b = sweep("a"), sweep("b")
    assert "do not differ in gpu" in compare(a, b, "--variable", "gpu", code=1).stderr
    assert "no such variable" in compare(a, b, "--variable", "colour", code=2).stderr


def test_nothing_in_common(tmp_path: Path) -> None:
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    a.write_text(cells_csv(study({8: {1: [1.0, 2.0], 2: [3.0, 4.0]}})))
    b.write_text(cells_csv(study({8: {1: [1.0, 2.0], 2: [3.0, 4.0]}}, model="n")))
    assert "no cell in common" in compare(a, b, "--allow", "unknown", code=1).stderr
