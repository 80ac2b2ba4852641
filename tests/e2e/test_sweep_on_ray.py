"""A sweep on a real Ray cluster of two nodes with declared GPUs. Slow: Ray is 70 MB of packages.

The nodes are raylets on this machine; their GPUs are declared, so what is shown is scheduling, not
speed: placement, one shard a node, one ledger, a lost node.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvreg.analysis.table import rows_of
from kvreg.model.digest import sha256_file
from kvreg.sweep.ledger import read_ledger
from kvreg.sweep.plan import load_plan
from tests.e2e.conftest import ROOT
from tests.e2e.test_vllm_runtime import environments, make_environment, uv
from tests.sweep.conftest import SUPPORT, Bench
from tests.sweep.test_run import tiny

__all__ = ["environments"]

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(1200)]

# Tells which GPUs each cell could see, then serves. Nodes have an environment of their own, so
# the script says where the faults are.
ENGINE = """#!/bin/sh
export KVREG_SIMULATED_FAULTS={faults}
[ -n "$KVREG_CELL" ] && echo "$KVREG_CELL $CUDA_VISIBLE_DEVICES" >> {shown}
exec {python} {server} "$@"
"""


@pytest.fixture(scope="session")
def ray_python(environments: Path) -> Path:
    """CPython with Ray and this checkout's client."""
    python = make_environment(environments / "ray", "ray==2.60.0")
    uv("pip", "install", "--quiet", "--python", python, "-e", ROOT / "kvreg")
    return python


@pytest.fixture(scope="module")
def cluster(ray_python):
    """The address of two nodes with two GPUs each."""
    process = subprocess.Popen(
        [ray_python, SUPPORT / "ray_cluster.py", "2", "2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
        start_new_session=True,
    )
    address = process.stdout.readline().strip()
    assert address
    yield address
    process.stdin.close()
    process.wait(60)


@pytest.fixture
def bench(ray_python, tmp_path):
    bench = Bench(tmp_path / "bench")
    shown = bench.root / "shown"
    script = bench.root / "engine.sh"
    script.write_text(
        ENGINE.format(
            shown=shown,
            python=ray_python,
            server=SUPPORT / "openai_server.py",
            faults=bench.root / "faults.json",
        )
    )
    script.chmod(0o755)
    bench.engine = (str(script),)
    bench.shown = shown
    bench.write_plan(tiny(repetitions="4"))
    return bench


@pytest.fixture
def sweep(bench, ray_python, cluster):
    """Start `kvreg sweep run --engine ray`."""
    # Two nodes on one machine share its GPU monitor, so each would see the other's memory.
    words = [str(ray_python), *bench.command("run", sampler="none")[1:], "--engine", "ray"]
    words += ["--ray-address", cluster, "--caches", str(bench.root / "caches"), "--json"]

    runners = []

    def start(*options: str) -> "subprocess.Popen[str]":
        runner = subprocess.Popen(
            [*words, *options],
            env=bench.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        runners.append(runner)
        return runner

    yield start
    for runner in runners:
        runner.kill()
        runner.wait()


def test_shards_go_to_nodes_and_evidence_comes_back(bench, sweep):
    runner = sweep()
    out, err = runner.communicate()
    assert runner.returncode == 0, out + err
    assert json.loads(out)["status"]["states"] == {"MEASURED": 8}
    ledger = read_ledger(bench.out)
    plan = load_plan(bench.plan)
    assert set(ledger.results) == {cell.id for cell in plan.cells()}
    for name, result in ledger.results.items():
        for file, digest in result.event["evidence"].items():
            assert sha256_file(bench.out / "cells" / name / "attempt-1" / file) == digest
    assert len(rows_of(bench.out).rows) == 8
    # A node's GPUs are all reserved for one shard, and a cell sees them.
    seen = [line.split() for line in bench.shown.read_text().splitlines()]
    assert {gpus for _, gpus in seen} == {"0,1"}
    # Cells of a shard follow each other; shards of the two nodes overlap.
    running, most = 0, 0
    for event in ledger.events:
        running += {"started": 1, "finished": -1}.get(event["event"], 0)
        most = max(most, running)
    assert most == 2
    # One pilot, however many nodes.
    assert sum(event["event"] == "pilot" for event in ledger.events) == 1
    assert len(list((bench.out / "hosts").glob("*.json"))) >= 2
    # Nothing is left to do, and nothing is done again.
    again = sweep("--resume")
    out, err = again.communicate()
    assert json.loads(out)["ran"] == 0, err


def test_a_lost_worker_costs_one_cell_and_the_shard_goes_on_elsewhere(bench, sweep):
    hanging = "opt-125m.short.c2.tp1.r2"
    bench.write_plan(tiny(repetitions="2").replace("stall_s = 2", "stall_s = 60"))
    bench.faults = {hanging: {"kind": "hang"}}
    runner = sweep()
    end = time.monotonic() + 120
    pid = None
    while pid is None and time.monotonic() < end:
        time.sleep(0.5)
        for path in Path("/proc").glob("[0-9]*"):
            try:
                variables = (path / "environ").read_bytes()
                line = (path / "cmdline").read_bytes()
            except OSError:
                continue
            if f"KVREG_CELL={hanging}".encode() in variables and b"openai_server" in line:
                pid = _worker_of(int(path.name))
    assert pid, "the hanging cell never began"
    os.kill(pid, signal.SIGKILL)
    out, err = runner.communicate()
    assert runner.returncode == 0, out + err
    results = read_ledger(bench.out).results
    assert results[hanging].state == "FAILED"
    assert "the node was lost" in results[hanging].reason
    assert [r.state for r in results.values()].count("MEASURED") == 3


def test_a_cluster_without_enough_gpus_is_refused(bench, sweep):
    bench.write_plan(tiny().replace("tensor_parallel = [1, 2]", "tensor_parallel = [1, 4]"))
    runner = sweep()
    out, _ = runner.communicate()
    assert runner.returncode == 2
    assert json.loads(out)["error"]["what"] == "no node of the cluster is large enough"


def test_without_ray_that_is_said(bench):
    words = [*bench.command("run", sampler="none"), "--engine", "ray", "--json"]
    words[0] = sys.executable
    result = subprocess.run(words, capture_output=True, text=True, env=bench.environment)
    assert result.returncode == 3, shlex.join(words) + result.stdout
    assert "Ray is not installed" in result.stdout


def _worker_of(pid: int) -> int:
    """The Ray worker process above a server."""
    while pid > 1:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pid = int(fields[1])
        if b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError("no Ray worker")
