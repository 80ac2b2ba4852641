"""Latency and bandwidth from observations of lines that are known."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from kvreg.cli import main
from kvreg.errors import ContractError, UsageError
from kvreg.nccl.design import Design
from kvreg.nccl.fit import analyse, bus_factor, fit_line
from kvreg.nccl.record import Record
from tests.support.communication import LAUNCH_US, simulate

PUBLISHED = json.loads(
    (Path(__file__).parents[1] / "data/seeds/m3_nccl_allreduce.json").read_text()
)
LATENCY = PUBLISHED["fit"]["intercept_us"]
BANDWIDTH = PUBLISHED["fit"]["bandwidth_GB_per_s"]
MIB = 2**20


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Record:
    """The published design, simulated with the published line."""
    path = tmp_path_factory.mktemp("nccl") / "m3.jsonl"
    return simulate(path, LATENCY, BANDWIDTH)


@pytest.fixture(scope="module")
def analysed(measured) -> dict:
    return analyse(measured)


def test_the_default_design_is_the_published_one():
    design = Design()
    assert len(design.payloads) == PUBLISHED["payload_sizes"]
    assert design.repetitions == PUBLISHED["repetitions_per_payload"]
    assert design.collectives == PUBLISHED["collectives_per_repetition"]
    assert design.observations == PUBLISHED["critical_path_observations"]
    assert design.ranks == PUBLISHED["ranks"]
    assert 64 * MIB in design.payloads


@pytest.mark.parametrize("weights", ["plain", "relative"])
@pytest.mark.parametrize("timer", ["event", "graph"])
def test_the_published_line_lies_in_the_interval(analysed, timer, weights):
    entry = analysed["timers"][timer]
    assert entry["observations"] == PUBLISHED["critical_path_observations"]
    fitted = entry["fits"][weights]
    assert fitted["interval_from"] == "repetitions"
    for key, true in (("intercept_us", LATENCY), ("algorithm_bandwidth_GB_per_s", BANDWIDTH)):
        assert fitted[key]["low"] < true < fitted[key]["high"]
    # Two ranks: the bus carries the payload once each way.
    assert fitted["bus_bandwidth_GB_per_s"] == fitted["algorithm_bandwidth_GB_per_s"]


def test_relative_weights_know_the_latency_that_plain_ones_lose(analysed):
    fits = analysed["timers"]["graph"]["fits"]

    def width(name):
        return fits[name]["intercept_us"]["high"] - fits[name]["intercept_us"]["low"]

    assert width("relative") < width("plain") / 5
    assert width("relative") < 0.02 * LATENCY


def test_timers_are_kept_apart(analysed):
    timers = analysed["timers"]
    host, graph = (timers[name]["fits"]["relative"]["intercept_us"] for name in ("host", "graph"))
    assert host["value"] - graph["value"] == pytest.approx(LAUNCH_US, rel=0.1)
    assert all(timers[name]["meaning"] for name in ("host", "event", "graph"))


def test_effective_bandwidth_at_64_mib(analysed):
    rows = analysed["timers"]["graph"]["payloads"]
    [row] = [row for row in rows if row["bytes"] == 64 * MIB]
    published = PUBLISHED["effective_bandwidth_at_64MiB_GB_per_s"]
    assert row["algorithm_bandwidth_GB_per_s"] == pytest.approx(published, rel=0.01)
    assert abs(row["residuals"]["relative"]["relative"]) < 0.02
    assert len(row["repetition_us"]) == 5


@given(
    st.floats(1, 500),
    st.floats(0.5, 400),
    st.integers(3, 12),
    st.sampled_from(["plain", "relative"]),
)
def test_a_line_without_noise_is_found_exactly(latency, bandwidth, count, weights):
    sizes = [1024 * 4**step for step in range(count)]
    line = fit_line(sizes, [latency + size / bandwidth / 1000 for size in sizes], weights=weights)
    assert line.bandwidth.value == pytest.approx(bandwidth, rel=1e-6)
    assert line.latency_us.value == pytest.approx(latency, rel=1e-3)
    assert line.time_us(2048) == pytest.approx(latency + 2048 / bandwidth / 1000, rel=1e-3)


@given(st.integers(0, 10_000), st.floats(1e-3, 1e3))
def test_the_unit_of_time_changes_nothing_else(seed, unit):
    rng = random.Random(seed)
    sizes = [size for size in (1000, 10_000, 100_000) for _ in range(3)]
    times = [20 + size / 5000 + rng.gauss(0, 1) for size in sizes]
    one, other = fit_line(sizes, times), fit_line(sizes, [time * unit for time in times])
    assert other.latency_us.low == pytest.approx(one.latency_us.low * unit)
    assert other.bandwidth.value == pytest.approx(one.bandwidth.value / unit)


def test_scipy_finds_the_same():
    rng = random.Random(3)
    sizes = [1024 * 4**step for step in range(8) for _ in range(5)]
    times = [(30 + size / 8000) * (1 + rng.gauss(0, 0.05)) for size in sizes]
    oracle = stats.linregress(sizes, times)
    reach = stats.t.ppf(0.975, len(sizes) - 2)
    plain = fit_line(sizes, times)
    assert plain.latency_us.value == pytest.approx(oracle.intercept)
    assert plain.latency_us.high == pytest.approx(
        oracle.intercept + reach * oracle.intercept_stderr
    )
    assert plain.bandwidth.low == pytest.approx(1e-3 / (oracle.slope + reach * oracle.stderr))
    means = [np.mean([t for s, t in zip(sizes, times, strict=True) if s == size]) for size in sizes]
    (a, b), covariance = optimize.curve_fit(
        lambda s, a, b: a + b * s, np.array(sizes) / 1e6, times, sigma=means
    )
    relative = fit_line(sizes, times, weights="relative")
    assert relative.latency_us.value == pytest.approx(a, rel=1e-4)
    assert relative.latency_us.low == pytest.approx(
        a - reach * math.sqrt(covariance[0, 0]), rel=1e-3
    )
    assert relative.bandwidth.value == pytest.approx(1e3 / b, rel=1e-4)


@pytest.mark.parametrize("weights", ["plain", "relative"])
def test_intervals_over_repetitions_cover_what_they_promise(weights):
    """Noise in proportion to the time, and a factor that a repetition's payloads share."""
    rng = np.random.default_rng(5)
    sizes = np.repeat([1024.0 * 4**step for step in range(10)], 5)
    repetitions = np.tile(range(5), 10)
    true = 112.0 + sizes / 4000
    designs, hits, scatter = 400, [0, 0], 0
    for _ in range(designs):
        shared = 1 + 0.003 * rng.normal(0, 1, 5)
        times = true * shared[repetitions] * (1 + 0.003 * rng.normal(0, 1, len(sizes)))
        line = fit_line(sizes, times, weights=weights, repetitions=repetitions)
        hits[0] += line.latency_us.low <= 112.0 <= line.latency_us.high
        hits[1] += line.bandwidth.low <= 4.0 <= line.bandwidth.high
        textbook = fit_line(sizes, times, weights=weights).bandwidth
        scatter += textbook.low <= 4.0 <= textbook.high
    # 3.5 standard errors of a binomial share
    tolerance = 3.5 * math.sqrt(0.95 * 0.05 / designs)
    assert all(abs(hit / designs - 0.95) < tolerance for hit in hits), hits
    assert scatter / designs < 0.95 - tolerance  # why the textbook's interval is not the one used


def test_the_line_over_repetitions_is_the_line_through_all_points():
    rng = random.Random(1)
    sizes = [1024 * 4**step for step in range(6)] * 3
    times = [(50 + size / 3000) * (1 + rng.gauss(0, 0.1)) for size in sizes]
    for weights in ("plain", "relative"):
        one = fit_line(sizes, times, weights=weights, repetitions=[0] * 6 + [1] * 6 + [2] * 6)
        other = fit_line(sizes, times, weights=weights)
        assert one.bandwidth.value == other.bandwidth.value
        assert (one.basis, other.basis) == ("repetitions", "scatter")
        assert one.latency_us.low < one.latency_us.value < one.latency_us.high


def test_repetitions_that_lack_payloads_are_refused():
    with pytest.raises(UsageError, match="every payload"):
        fit_line([1, 2, 3, 1, 2], [1.0, 2.0, 3.0, 1.0, 2.0], repetitions=[0, 0, 0, 1, 1])


def test_an_interval_that_reaches_no_slope_is_open():
    line = fit_line([1, 1, 2, 2], [10.0, 20.0, 12.0, 19.0])
    assert line.bandwidth.high is None
    assert fit_line([1, 2, 3], [3.0, 2.0, 1.0]).time_us(4) is None


def test_bus_bandwidth_of_more_ranks():
    assert [bus_factor(n) for n in (2, 4, 8)] == [1, 1.5, 1.75]


def test_too_little_is_refused():
    for sizes, times in (([1, 2], [1.0, 2.0]), ([1, 1, 1], [1.0, 2.0, 3.0])):
        with pytest.raises(UsageError, match="too little"):
            fit_line(sizes, times)


def test_a_spike_moves_the_mean_and_not_the_median(tmp_path):
    design = Design(payloads=(1024, 65536, 4 * MIB), repetitions=2, collectives=20)
    record = simulate(tmp_path / "one.jsonl", 50, 10, design=design, noise=0.001)
    next(s for s in record.repetitions[0].samples if s["timer"] == "event")["us"][3] *= 1000
    for statistic, within in (("mean", False), ("median", True)):
        rows = analyse(record, statistic=statistic)["timers"]["event"]["payloads"]
        worst = max(abs(row["us"] / (50 + row["bytes"] / 10_000) - 1) for row in rows)
        assert (worst < 0.02) is within


def test_one_payload_gives_a_table_and_no_line(tmp_path):
    design = Design(payloads=(4096,), repetitions=3, collectives=5)
    entry = analyse(simulate(tmp_path / "one.jsonl", 50, 10, design=design))["timers"]["graph"]
    assert entry["fits"] == {} and len(entry["payloads"]) == 1


def test_nothing_measured_is_said(tmp_path):
    record = Record(tmp_path / "none.jsonl", Design())
    with pytest.raises(ContractError, match="has no repetition"):
        analyse(record)


def test_the_command_says_the_same_in_text_and_json(measured, analysed):
    result = CliRunner().invoke(main, ["nccl", "fit", str(measured.path), "--json"])
    assert json.loads(result.stdout) == json.loads(json.dumps(analysed))
    text = CliRunner().invoke(main, ["nccl", "fit", str(measured.path)]).stdout
    for said in ("SIMULATED", "Tesla T4", "64 MiB", "graph:", "relative  a = 112", "95% GB/s"):
        assert said in text
