"""Running cells: gates, resources, resume, refusals, the case study."""

import json
import signal
import time
from pathlib import Path

import pytest

from kvreg.sweep.plan import load_plan
from kvreg.sweep.presets import read_preset
from tests.sweep.conftest import QUICK, SERVER, SUPPORT, alive, smoke_plan


def tiny(**changes):
    """One shape at one concurrency, once: two cells."""
    changes = {"concurrency": "[2]", "repetitions": "1", "warmup_waves": "1", **changes}
    text = smoke_plan(**changes)
    start = text.index('[[workloads]]\nname = "long"')
    return text[:start] + text[text.index("[engine.options]") :]


ONE, TWO = "opt-125m.short.c2.tp1.r1", "opt-125m.short.c2.tp2.r1"


@pytest.fixture
def bench(bench):
    bench.write_plan(tiny())
    return bench


def states(bench):
    return {name: result.state for name, result in bench.ledger().results.items()}


FAULTS = (
    ("oom", "RESOURCE_GATED", "the engine ran out of GPU memory: torch.OutOfMemoryError"),
    ("start-oom", "RESOURCE_GATED", "no memory is left for the KV cache"),
    ("start-crash", "FAILED", "the server was killed by SIGSEGV"),
    ("unsupported", "INCOMPATIBLE", "the engine does not know the model"),
    ("counts", "FAILED", "the server reports 32 prompt tokens and 15 output tokens"),
)


def test_faults_of_single_cells(bench):
    bench.write_plan(tiny(repetitions=str(len(FAULTS))))
    names = [f"opt-125m.short.c2.tp1.r{number + 1}" for number in range(len(FAULTS))]
    bench.faults = {name: {"kind": kind} for name, (kind, _, _) in zip(names, FAULTS, strict=True)}
    bench("run")
    results = bench.ledger().results
    for name, (_, state, reason) in zip(names, FAULTS, strict=True):
        assert results[name].state == state
        assert reason in results[name].reason
        assert "output_tokens_per_s" not in results[name].metrics
        assert results[name.replace("tp1", "tp2")].state == "MEASURED"
    assert alive(str(bench.root)) == []


def test_a_server_that_never_gets_healthy(bench):
    bench.write_plan(tiny().replace("start_s = 30", "start_s = 1.5"))
    bench.faults = {TWO: {"kind": "start-hang"}}
    bench("run")
    assert "not healthy after 1.5 s" in bench.ledger().results[TWO].reason
    assert states(bench)[ONE] == "MEASURED"


def test_a_model_that_fails_the_gate_stays_on_record_and_costs_no_starts(bench):
    bench.faults = {"gate": {"kind": "unsupported"}}
    bench("run")
    ledger = bench.ledger()
    assert set(states(bench).values()) == {"INCOMPATIBLE"}
    assert "the compatibility gate was not passed" in ledger.results[ONE].reason
    gates = [event for event in ledger.events if event["event"] == "gate"]
    assert [event["state"] for event in gates] == ["INCOMPATIBLE"] * 2
    assert "not supported for now" in gates[0]["log_tail"]
    assert ledger.results[ONE].timing["start_s"] == 0


def test_a_gate_past_the_boundary_is_a_capacity_outcome(bench):
    bench.write_plan(tiny(memory_boundary_mib="9000"))
    bench("run")
    assert states(bench) == {ONE: "RESOURCE_GATED", TWO: "MEASURED"}
    assert "past the boundary of 9000 MiB" in bench.ledger().results[ONE].reason


def test_the_gate_command_takes_the_models_that_are_not_measured(bench):
    text = tiny()
    more = '[[models]]\nname = "other"\nrepository = "some/other"\nrole = "gate"\n'
    revision = 'revision = "27dcfa74d334bc871f3234de431e71c6eeba5dd6"\n'
    bench.write_plan(text.replace("[[workloads]]", more + revision + "\n[[workloads]]", 1))
    rows = bench("gate")
    assert [(row["model"], row["tp"], row["state"]) for row in rows] == [
        ("opt-125m", 1, "COMPATIBLE"),
        ("opt-125m", 2, "COMPATIBLE"),
        ("other", 1, "COMPATIBLE"),
        ("other", 2, "COMPATIBLE"),
    ]
    events = len(bench.ledger().events)
    bench("gate")
    assert len(bench.ledger().events) == events + 1  # the session's own; nothing was loaded again
    bench("run", "--resume")
    assert set(bench.ledger().results) == {ONE, TWO}
    assert sum(event["event"] == "gate" for event in bench.ledger().events) == 4


def test_without_eyes_the_boundary_is_not_enforced_and_that_is_said(bench):
    bench.write_plan(tiny(memory_boundary_mib="1"))
    bench("run", sampler="none")
    assert "the boundary is not enforced" in bench.errors
    result = bench.ledger().results[ONE]
    assert result.state == "MEASURED"
    assert result.metrics["max_gpu_memory_mib"] is None


def test_a_failed_cell_is_tried_again_when_the_plan_or_the_caller_says_so(bench):
    bench.write_plan(tiny(attempts="2"))
    bench.faults = {ONE: {"kind": "crash"}}
    bench("run")
    ledger = bench.ledger()
    assert ledger.attempts == {ONE: 2, TWO: 1}
    assert ledger.results[ONE].state == "FAILED"
    bench.faults = {}
    assert bench("run", "--resume")["ran"] == 0
    assert bench("run", "--resume", "--retry-failed")["ran"] == 1
    result = bench.ledger().results[ONE]
    assert (result.state, result.attempt) == ("MEASURED", 3)
    assert (bench.out / "cells" / ONE / "attempt-1" / "server.log").is_file()


def test_a_directory_holds_one_sweep(bench):
    bench("run")
    error = bench("run", code=2)["error"]
    assert "has begun" in error["what"] and "--resume" in error["remedy"]
    bench.write_plan(tiny(seed="7"))
    error = bench("run", "--resume", code=1)["error"]
    assert error["what"] == "the directory is of another sweep"
    assert "plan differs" in error["problems"][0]["what"]


def test_one_writer_at_a_time(bench):
    bench.faults = {name: {"kind": "hang"} for name in (ONE, TWO)}
    runner = bench.start()
    end = time.monotonic() + 30
    while not bench.ledger().attempts and time.monotonic() < end:
        time.sleep(0.05)
    error = bench("run", "--resume", code=2)["error"]
    assert "another process" in error["what"]
    runner.send_signal(signal.SIGINT)
    runner.wait(30)
    assert alive(str(bench.gpus)) == []
    assert sum(bench.ledger().broken.values()) == 1


def test_shards_are_parts_of_one_sweep(bench):
    bench.write_plan(tiny(repetitions="2"))
    assert bench("run", "--shard", "1/2")["ran"] == 2
    assert {result.cell[-2:] for result in bench.ledger().results.values()} == {"r1"}
    summary = bench("run", "--shard", "2/2", "--resume")
    assert summary["ran"] == 2 and summary["status"]["done"] == 4
    assert bench("run", "--shard", "3/2", "--resume", code=2)["error"]["kind"] == "usage"


def test_no_cell_begins_that_would_outlast_the_session(bench):
    summary = bench("run", "--hours", "0.001")
    assert (summary["ran"], summary["left_of_shard"]) == (0, 2)


def test_an_invalid_plan_makes_no_directory(bench):
    bench.write_plan(tiny(precision="7"))
    assert bench("run", code=1)["error"]["problems"]
    assert not bench.out.exists()


def test_an_engine_that_is_not_there(bench):
    bench.engine = ("/nowhere/vllm", "serve")
    error = bench("run", code=1)["error"]
    assert "/nowhere/vllm" in error["found"]


def test_the_engine_gets_the_options_of_the_plan_in_both_arms(bench):
    shown = bench.root / "arguments"
    script = bench.root / "engine.sh"
    script.write_text(f'#!/bin/sh\necho "$@" >> {shown}\nexec {" ".join(SERVER)} "$@"\n')
    script.chmod(0o755)
    bench.engine = (str(script),)
    bench("run")
    lines = [line.split() for line in shown.read_text().splitlines() if "--port" in line]
    assert len(lines) == 4  # a gate and a cell each
    plan = load_plan(bench.plan)
    for line in lines:
        assert line[0] == "facebook/opt-125m"
        assert line[line.index("--revision") + 1] == plan.models[0].revision
        for name, value in plan.engine.items():
            place = line.index(f"--{name}")
            assert value is True or line[place + 1] == str(value)
    assert {line[line.index("--tensor-parallel-size") + 1] for line in lines} == {"1", "2"}


def test_compile_caches_are_one_for_each_arm_and_warm_before_the_first_cell(bench):
    shown = bench.root / "caches"
    script = bench.root / "engine.sh"
    says = f'echo "$KVREG_CELL $TRITON_CACHE_DIR" >> {shown}'
    script.write_text(f'#!/bin/sh\n{says}\nexec {" ".join(SERVER)} "$@"\n')
    script.chmod(0o755)
    bench.engine = (str(script),)
    bench("run")
    lines = [line.rpartition(" ") for line in shown.read_text().splitlines() if "/" in line]
    assert [bool(cell) for cell, _, _ in lines] == [False, True, False, True]
    by_arm = {cell[-5:-3]: folder for cell, _, folder in lines if cell}
    assert len(by_arm) == len(set(by_arm.values())) == 2
    cache = Path(by_arm["p1"]).parent
    assert json.loads((cache / "warmed.json").read_text())["key"] == cache.name


def test_gpus_that_do_not_become_idle_fail_the_cell_and_not_the_sweep(bench):
    """A process that is none of ours takes memory in the middle and keeps it."""
    bench.write_plan(tiny().replace("idle_s = 10", "idle_s = 0.5"))
    hog = bench.root / "hog.sh"
    # The engine of the first cell leaves memory behind that belongs to a process that lives on.
    hog.write_text(
        "#!/bin/sh\n"
        f'[ -n "$KVREG_CELL" ] && echo "[5000, 5000]" > {bench.gpus}/1\n'
        f'exec {" ".join(SERVER)} "$@"\n'
    )
    hog.chmod(0o755)
    bench.engine = (str(hog),)
    bench("run")
    found = states(bench)
    assert sorted(found.values()) == ["FAILED", "MEASURED"]
    (failed,) = [r for r in bench.ledger().results.values() if r.state == "FAILED"]
    assert "the GPUs are not idle: GPU 0 has 5003 MiB in use" in failed.reason


def case_plan():
    text = read_preset("case").decode()
    for key, value in {
        "concurrency": "[1, 4]",
        "repetitions": "2",
        "min_waves": "1",
        "pilot_waves": "0",
        "stall_s": "2",
        "stop_s": "2",
        "idle_s": "10",
        "start_s": "30",
    }.items():
        lines = [line for line in text.splitlines() if line.startswith(f"{key} = ")]
        text = text.replace(lines[0], f"{key} = {value}", 1)
    return text.replace("output_tokens = 128", "output_tokens = 4").replace(
        "output_tokens = 64", "output_tokens = 4"
    )


def test_the_case_study_runs_in_one_server_an_arm(bench):
    bench.write_plan(case_plan())
    # The server of TP 2 runs out of memory in its third cell; the rest get another one.
    bench.faults = {"ALLaM-7B-Instruct-preview.text-ar.c1.tp2.r1": {"kind": "oom", "after": 10}}
    summary = bench("run")
    assert summary["status"]["label"] == "within-server, descriptive"
    ledger = bench.ledger()
    assert len(ledger.results) == 36
    assert [name for name, r in ledger.results.items() if r.state != "MEASURED"] == [
        "ALLaM-7B-Instruct-preview.text-en.c1.tp2.r1"
    ]
    assert len(list((bench.out / "cells").glob("*/attempt-1/server.json"))) == 3
    texts = ledger.results["ALLaM-7B-Instruct-preview.text-ar.c4.tp1.r1"]
    assert texts.metrics["input_tokens"] > 0
    logs = [path.stat().st_size for path in (bench.out / "cells").glob("*/*/server.log")]
    assert len(logs) == 36


def test_quick_limits_are_those_of_the_preset():
    text = read_preset("smoke").decode()
    assert all(text.count(line) == 1 for line in QUICK)
    assert (SUPPORT / "openai_server.py").is_file()
