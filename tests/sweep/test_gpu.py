"""On a machine with a GPU: NVML sees what a server takes, and that it gives it back."""

import csv
import sys

import pytest

from kvreg.errors import KvregError
from kvreg.sweep.sampling import open_sampler
from tests.sweep.conftest import SUPPORT
from tests.sweep.test_run import tiny


def _gpus() -> int:
    try:
        sampler = open_sampler("nvml")
    except KvregError:
        return 0
    found = len(sampler.latest())
    sampler.close()
    return found


pytestmark = pytest.mark.skipif(_gpus() == 0, reason="no GPU that NVML sees")


@pytest.mark.parametrize("sampler", ["nvml", "nvidia-smi"])
def test_real_memory_is_seen_held_against_the_boundary_and_given_back(bench, sampler):
    gated = "opt-125m.short.c2.tp1.r2"
    bench.engine = (sys.executable, str(SUPPORT / "cuda_server.py"))
    bench.faults = {gated: {"kind": "memory", "mib": 9000, "after": 6}}
    plan = tiny(repetitions="3").replace("tensor_parallel = [1, 2]", "tensor_parallel = [1]")
    bench.write_plan(plan)
    bench("run", sampler=sampler)
    results = bench.ledger().results
    assert {name: r.state for name, r in results.items() if r.state != "MEASURED"} == {
        gated: "RESOURCE_GATED"
    }
    session = next(event for event in bench.ledger().events if event["event"] == "session")
    idle = session["idle_mib"]["0"]
    for name, result in results.items():
        seen = result.metrics["gpu0_max_memory_mib"]
        if name != gated:
            # The model's 9400 MiB, and the context of the process.
            assert idle + 9300 <= seen <= idle + 10800
        folder = bench.out / "cells" / name / "attempt-1"
        rows = [r for r in csv.DictReader((folder / "samples.csv").open()) if r["gpu"] == "0"]
        assert float(rows[-1]["memory_mib"]) <= idle + 64
        assert all(float(row["power_w"]) > 0 for row in rows)
        assert all(float(row["sm_clock_mhz"]) > 0 for row in rows)
        # Giving it back is part of what costs less than 3 s.
        assert result.timing["stop_s"] + result.timing["other_s"] < 3
