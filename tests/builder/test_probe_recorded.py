"""Reports that the probe wrote on real GPUs (two H200): the schema holds, and they say what was.

h200x2-sm90: the build for that architecture. h200x2-sm75: the published build of t4-probe, which
has no machine code for it.
"""

import json
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "data" / "probe"
SCHEMA = json.loads(
    (ROOT / "builder" / "probe" / "src" / "kvreg_probe" / "report.schema.json").read_text()
)


def report(name: str) -> dict:
    return json.loads((RECORDED / f"{name}.json").read_text())


@pytest.mark.parametrize("name", ["h200x2-sm75", "h200x2-sm90"])
def test_a_report_of_real_hardware_follows_the_schema(name):
    jsonschema.validate(report(name), SCHEMA)


def test_on_its_architecture_every_check_is_right_on_both_gpus():
    found = report("h200x2-sm90")
    assert found["status"] == "ok"
    assert [d["compute_capability"] for d in found["devices"]] == ["9.0", "9.0"]
    assert all(c["status"] == "ok" for d in found["devices"] for c in d["checks"])
    assert {(link["source"], link["target"]) for link in found["links"]} == {(0, 1), (1, 0)}


def test_on_another_architecture_both_are_named_and_nothing_is_measured():
    found = report("h200x2-sm75")
    assert found["status"] == "failed"
    assert [p["code"] for p in found["problems"]] == ["no-kernel-image"] * 2
    for problem in found["problems"]:
        assert "7.5" in problem["expected"]
        assert "9.0" in problem["found"]
    assert all(d["transfer"] is None for d in found["devices"])
