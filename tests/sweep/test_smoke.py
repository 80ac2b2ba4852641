"""The whole smoke sweep: curves that cross, one cell past the boundary, one crash, one hang."""

import csv
import json
import random
import re
import time
from itertools import pairwise

import pytest

from kvreg.analysis import analyze
from kvreg.analysis.table import rows_of
from kvreg.model.digest import sha256_file
from kvreg.report.evidence import gather
from kvreg.report.page import page
from kvreg.sweep.metrics import mean
from kvreg.sweep.plan import load_plan
from tests.support.openai_server import closed_loop_tokens_per_s, memory_mib
from tests.sweep.conftest import alive, smoke_plan, stalled_s

CRASH, HANG, OVER = (
    "opt-125m.short.c1.tp2.r2",
    "opt-125m.short.c4.tp1.r3",
    "opt-125m.long.c16.tp1.r2",
)


@pytest.fixture(scope="module")
def swept(make_bench):
    bench = make_bench("smoke")
    bench.faults = {
        # In the second of two waves.
        CRASH: {"kind": "crash", "after": 1},
        HANG: {"kind": "hang", "after": 4},
        OVER: {"kind": "memory", "mib": 9000, "after": 16},
    }
    bench.summary = bench("run")
    return bench


def test_every_cell_ends_in_a_state_and_the_bad_ones_in_theirs(swept):
    results = swept.ledger().results
    assert len(results) == 36
    bad = {name: result for name, result in results.items() if result.state != "MEASURED"}
    assert {name: result.state for name, result in bad.items()} == {
        CRASH: "FAILED",
        HANG: "FAILED",
        OVER: "RESOURCE_GATED",
    }
    assert bad[CRASH].reason == "the server was killed by SIGKILL"
    assert "no token of any request for 4 s" in bad[HANG].reason
    assert "past the boundary of 14848 MiB" in bad[OVER].reason
    for result in bad.values():
        # Never a zero: there is no throughput at all.
        assert "output_tokens_per_s" not in result.metrics
        assert "simulated server on" in result.event["log_tail"]
    assert bad[OVER].metrics["max_gpu_memory_mib"] > 14848
    assert swept.summary["status"]["states"] == {"MEASURED": 33, "RESOURCE_GATED": 1, "FAILED": 2}


def test_the_analysis_finds_exactly_that(swept):
    assert _crossovers(swept) == {"short": 16, "long": "RESOURCE_GATED@16"}


def test_the_report_finds_exactly_that(swept):
    evidence = gather(swept.out)
    text = page(evidence)
    cells = dict(re.findall(r'data-workload="(\w+)"[^>]*><span class="large">([^<]+)<', text))
    assert cells == {"short": "at 16", "long": "gated at 16"}
    assert evidence.simulated and "Simulated data" in text
    assert load_plan(swept.out).digest in text and "Mean seconds of a measured cell" in text
    states = {name: result.state for name, result in swept.ledger().results.items()}
    for name, part in (
        (CRASH, "killed by SIGKILL"),
        (HANG, "no token"),
        (OVER, "past the boundary"),
    ):
        assert states[name] != "MEASURED" and part in text
    assert {file.path for file in evidence.raw_files} >= {"ledger.jsonl", "plan.toml", "facts.json"}
    assert len(evidence.raw_files) == sum(path.is_file() for path in swept.out.rglob("*"))


@pytest.mark.parametrize("shape", [("short", 32), ("long", 256)])
def test_measured_throughput_is_that_of_the_latency_model(swept, shape):
    workload, tokens = shape
    results = swept.ledger().results
    for concurrency in (1, 4, 16):
        for tp in (1, 2):
            measured = [
                result.metrics["output_tokens_per_s"]
                for name, result in results.items()
                if name.startswith(f"opt-125m.{workload}.c{concurrency}.tp{tp}.")
                and result.state == "MEASURED"
            ]
            model = closed_loop_tokens_per_s(tp, concurrency, tokens, 16)
            # Clients cost the server's single thread time, and requests of a wave drift apart.
            # A machine that does other work makes single repetitions slow, never one fast.
            assert max(measured) == pytest.approx(model, rel=0.25)


def test_memory_is_that_of_the_memory_model(swept):
    results = swept.ledger().results
    for tp in (1, 2):
        seen = results[f"opt-125m.long.c16.tp{tp}.r1"].metrics["max_gpu_memory_mib"]
        assert memory_mib(tp, 16 * 256) <= seen <= memory_mib(tp, 16 * 272) + 4


def test_the_directory_is_traceable(swept):
    plan = load_plan(swept.out)
    identity = json.loads((swept.out / "identity.json").read_text())
    assert identity["plan"] == plan.digest == load_plan(swept.plan).digest
    assert (swept.out / "plan.toml").read_bytes() == swept.plan.read_bytes()
    assert identity["engine"]["version"] == "simulated 1.0"
    facts = json.loads((swept.out / "facts.json").read_text())
    assert facts["schema"] == 1
    for name, result in swept.ledger().results.items():
        folder = swept.out / "cells" / name / "attempt-1"
        assert {"server.log", "samples.csv"} <= set(result.event["evidence"])
        for file, digest in result.event["evidence"].items():
            assert sha256_file(folder / file) == digest
    started = [event for event in swept.ledger().events if event["event"] == "started"]
    assert all(event["plan"] == plan.digest and event["cache"]["warm"] for event in started)


def test_requests_have_the_planned_tokens_and_both_arms_the_same_prompts(swept):
    loads = {}
    for tp in (1, 2):
        path = swept.out / "cells" / f"opt-125m.short.c4.tp{tp}.r1" / "attempt-1" / "load.json"
        loads[tp] = json.loads(path.read_text())
    one, two = loads[1], loads[2]
    assert {(row["input_tokens"], row["output_tokens"]) for row in one["requests"]} == {(32, 16)}
    assert one["job"]["seed"] == two["job"]["seed"]
    assert len(one["requests"]) == len(two["requests"]) == one["job"]["requests"]


def test_the_pilot_decides_once_for_both_arms_and_all_repetitions(swept):
    ledger = swept.ledger()
    assert len(ledger.pilots) == 6
    for (_, workload, concurrency), event in ledger.pilots.items():
        counts = {
            result.event["requests"]
            for name, result in ledger.results.items()
            if f".{workload}.c{concurrency}." in name and result.event["requests"]
        }
        assert counts == {event["requests"]}


def test_gpus_were_sampled_at_ten_hertz(swept):
    path = swept.out / "cells" / "opt-125m.long.c16.tp1.r1" / "attempt-1" / "samples.csv"
    rows = list(csv.DictReader(path.open()))
    times = [float(row["time_s"]) for row in rows if row["gpu"] == "0"]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert mean(gaps) == pytest.approx(0.1, abs=0.02)
    assert {row["gpu"] for row in rows} == {"0", "1"}
    # The idle GPU of TP 1 stays idle.
    assert max(float(row["memory_mib"]) for row in rows if row["gpu"] == "1") == 3


def test_what_is_neither_start_nor_measurement_is_cheap(swept):
    results = swept.ledger().results.values()
    other = [result.timing["other_s"] + result.timing["stop_s"] for result in results]
    assert mean(other) < 1 and max(other) < 3
    assert swept.summary["status"]["mean_other_s"] < 1


def test_no_process_is_left(swept):
    assert alive(str(swept.root)) == []


def test_a_runner_killed_at_ten_random_moments_gives_the_same_tables(make_bench):
    """SIGKILL at any time, then --resume: the states and the judgement of an undisturbed run."""
    for last in (False, True):
        stalled = stalled_s()
        began = time.monotonic()
        undisturbed = _swept_with_kills(make_bench, 0)
        killed = _swept_with_kills(make_bench, 10)
        share = (stalled_s() - stalled) / (time.monotonic() - began)
        # Where other work takes the processors away, two measurements differ without a kill.
        if share < 0.5 or last or undisturbed[:2] == killed[:2]:
            break
    states, crossovers, speeds = undisturbed
    again, crossovers_again, speeds_again = killed
    assert states == again
    assert crossovers == crossovers_again, f"processes waited for a processor {share:.0%}"
    assert speeds_again == pytest.approx(speeds, rel=0.25)


def _swept_with_kills(make_bench, kills):
    text = smoke_plan(concurrency="[1, 16]")
    # One shape is enough here.
    start = text.index('[[workloads]]\nname = "long"')
    text = text[:start] + text[text.index("[engine.options]") :]
    chance = random.Random(20260100)
    bench = make_bench(f"kills-{kills}-")
    bench.faults = {CRASH: {"kind": "crash", "after": 1}}
    bench.write_plan(text)
    for number in range(kills):
        runner = bench.start("--resume")
        # Every third one while it starts up, the others with a cell under way, or two.
        before = _begun(bench)
        end = time.monotonic() + (60 if number % 3 else 0)
        while time.monotonic() < end and _begun(bench) == before:
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 1))
        runner.kill()
        runner.wait()
    bench("run", "--resume")
    assert alive(str(bench.root)) == []
    ledger = bench.ledger()
    assert set(ledger.results) == {cell.id for cell in load_plan(bench.plan).cells()}
    if kills:
        # The kills did hit cells, and their broken attempts are on record.
        assert sum(ledger.broken.values()) >= 2
        assert len({event["session"] for event in ledger.events}) >= 5
    assert _begun(bench) == len(ledger.results) + sum(ledger.broken.values())
    return (
        {name: (result.state, result.reason) for name, result in ledger.results.items()},
        _crossovers(bench),
        _speeds(ledger.results),
    )


def _crossovers(bench):
    rows = analyze(rows_of(bench.out)).to_dict()["crossovers"]
    return {row["workload"]: row["first_sustained_favorable"] for row in rows}


def _begun(bench):
    return sum(event["event"] == "started" for event in bench.ledger().events)


def _speeds(results):
    """Of each point the fastest repetition: other work on the machine only slows."""
    found = {}
    for name, result in results.items():
        point = name.rpartition(".")[0]
        speed = result.metrics.get("output_tokens_per_s", 0)
        found[point] = max(found.get(point, 0), speed)
    return found
