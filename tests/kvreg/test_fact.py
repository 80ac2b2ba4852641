"""The rule of facts: require, validated, found."""

import pytest

from kvreg.model.fact import Fact


@pytest.mark.parametrize(
    ("require", "validated", "found", "status"),
    [
        ("==2.10.0", "2.10.0+cu128", "2.10.0+cu128", "ok"),
        ("==2.10.0", "2.10.0+cu128", "2.10.0", "compatible-not-validated"),
        ("==2.10.0", "2.10.0+cu128", "2.11.0+cu128", "violated"),
        ("==2.10.0+cu128", "2.10.0+cu128", "2.10.0+cu126", "violated"),
        ("==3.12.*", "3.12.13", "3.12.1", "compatible-not-validated"),
        ("==3.12.*", "3.12.13", "3.13.15", "violated"),
        (">=525.60.13", "580.159.04", "580.159.04", "ok"),
        (">=525.60.13", "580.159.04", "525.60.11", "violated"),
        (">=12.4,<13", "12.8.93", "12.4.131", "compatible-not-validated"),
        (">=12.4,<13", "12.8.93", "13.0.88", "violated"),
        (">=2.10", "2.10", "2.11.0a0+git", "compatible-not-validated"),
        ("==7.5", "7.5", "7.5.0", "ok"),
        ("Tesla T4", "Tesla T4", "Tesla T4", "ok"),
        ("Tesla T4", "Tesla T4", "Tesla P100-PCIE-16GB", "violated"),
        (">=2", "2", "1", "violated"),
        ("*", "PHB", "NODE", "compatible-not-validated"),
        ("*", "PHB", "PHB", "ok"),
        ("*", "PHB", None, "unknown"),
        (">=2", "2", "two", "unknown"),
    ],
)
def test_judgement(require, validated, found, status):
    fact = Fact(require, validated)
    assert fact.problem() is None
    verdict = fact.judge(found)
    assert verdict.status == status
    assert verdict.ok == (status in ("ok", "compatible-not-validated"))
    assert found is None or found in verdict.reason


@pytest.mark.parametrize(
    ("require", "validated"),
    [(">>1", "1"), (">=2", "1"), (">=2", "two"), ("7.5", "8.0"), ("==3.12.*", "3.13.0")],
)
def test_a_fact_that_contradicts_itself_has_a_problem(require, validated):
    assert Fact(require, validated).problem()
