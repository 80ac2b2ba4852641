"""The acceptance script on a host without a GPU: every stage that does not need one, for real."""

import json
import os
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.kvreg.profiles import make_profile
from tests.support.layouts import packed_layout, write_layout
from tests.support.wheels import write_wheel

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gpu_acceptance.py"
SUPPORT = ROOT / "tests" / "support"
SERVER = shlex.join([sys.executable, str(SUPPORT / "openai_server.py")])
NO_GPU = ("doctor", "staged", "imports", "kernels", "nccl")


class Bench:
    """A packed artifact, simulated GPUs, and the script."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.gpus = root / "gpus"
        self.gpus.mkdir(parents=True)
        profile = make_profile(root / "profiles")
        (root / "built").mkdir()
        layout = root / "layout"
        layout.mkdir()
        write_layout(layout, profile, [(write_wheel(root / "built"), "native")])
        self.packed = packed_layout(layout, root / "packed")
        self.work, self.out = root / "work", root / "out"

    def __call__(self, *options: object, code: int = 0, work: Path | None = None) -> dict:
        monitor = [sys.executable, str(SUPPORT / "simulated_gpus.py"), str(self.gpus), "1"]
        work = work or self.work
        command = [
            *(sys.executable, SCRIPT, "demo", "--registry", f"oci-layout:{self.packed}"),
            *("--refused", "demo", "--work", work, "--out", self.out, "--tp", "1"),
            *("--concurrency", "1,4", "--measure-s", "1", "--engine-command", SERVER),
            *("--sampler", f"command:{shlex.join(monitor)}", *options),
        ]
        environment = {
            **os.environ,
            "KVREG_PROFILES": str(self.root / "profiles"),
            "KVREG_SIMULATED_GPUS": str(self.gpus),
        }
        ended = subprocess.run(
            [str(word) for word in command],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert ended.returncode == code, ended.stdout + ended.stderr
        tree = json.loads((work / "results" / "acceptance.json").read_text())
        return {stage["stage"]: stage for stage in tree["stages"]}


@pytest.fixture(scope="module")
def accepted(tmp_path_factory):
    bench = Bench(tmp_path_factory.mktemp("acceptance") / "bench")
    # A session that is too short for the sweep, one on the same machine that is not.
    first = bench("--skip", *NO_GPU, "--budget", "130", code=75)
    return bench, first, bench("--skip", *NO_GPU)


def test_a_short_session_leaves_what_does_not_fit_and_the_next_does_that_alone(accepted):
    _, first, last = accepted
    assert {first[name]["state"] for name in ("facts", "refusals", "pull")} == {"passed"}
    assert first["killed"]["state"] == "left"
    assert "s are left" in first["killed"]["reason"]
    assert first["sweep"]["state"] == "left"
    assert last["refusals"]["ended"] == first["refusals"]["ended"]
    assert {name: stage["state"] for name, stage in last.items()} == {
        **dict.fromkeys(("facts", "refusals", "pull", "serve", "boundary"), "passed"),
        **dict.fromkeys(("killed", "sweep", "judged", "evidence"), "passed"),
        **dict.fromkeys((*NO_GPU, "llm"), "skipped"),
    }


def test_a_profile_for_another_host_is_refused_with_its_reasons(accepted):
    reasons = accepted[2]["refusals"]["facts"]["demo"]
    assert any(reason.startswith("gpu.count") for reason in reasons)


def test_the_server_answered_and_is_gone(accepted):
    facts = accepted[2]["serve"]["facts"]
    assert facts["usage"]["completion_tokens"] == 16
    assert facts["ready_s"] < 60


def test_the_killed_runner_left_a_broken_attempt_and_every_cell_was_measured(accepted):
    _, _, stages = accepted
    cell = stages["killed"]["facts"]["cell"]
    assert stages["sweep"]["facts"]["states"] == {"MEASURED": 4}
    assert stages["sweep"]["facts"]["broken"] == [f"{cell} attempt 1"]
    cells = {row["cell"]: row for row in stages["judged"]["facts"]["cells"]}
    assert len(cells) == 4
    assert all(row["output_tokens_per_s"] > 0 for row in cells.values())
    observed = stages["judged"]["facts"]["observed"]
    assert {(item["concurrency"], item["tp"]) for item in observed} == {(1, 1), (4, 1)}
    assert all(item["observed_mib"] > 9000 for item in observed)


def test_the_gated_cell_has_its_reason(accepted):
    (reason,) = accepted[2]["boundary"]["facts"].values()
    assert "past the boundary of 4096 MiB" in reason


def test_what_leaves_the_machine_is_whole(accepted):
    bench, _, stages = accepted
    assert stages["evidence"]["facts"]["sweep"]["states"] == {"MEASURED": 4}
    names = {path.name for path in bench.out.iterdir()}
    assert {"acceptance.json", "acceptance.md", "sweep.evidence.tar"} <= names
    with tarfile.open(bench.out / "acceptance-results.tar.gz") as tar:
        assert "results/sweep/ledger.jsonl" in tar.getnames()
    page = (bench.out / "acceptance.md").read_text()
    assert "| killed | passed |" in page
    assert "shape-3b.short.c4.tp1.r2" in page


def test_another_machine_goes_on_from_the_archive(accepted, tmp_path):
    bench, _, before = accepted
    archive = bench.out / "acceptance-results.tar.gz"
    stages = bench("--skip", *NO_GPU, "--restore", archive, work=tmp_path / "other")
    assert stages["sweep"]["ended"] == before["sweep"]["ended"]
    # The runtime is not in the archive: it is pulled anew.
    assert stages["pull"]["ended"] >= before["sweep"]["ended"]
    assert list((tmp_path / "other" / "home" / "runtimes").iterdir())


def test_a_failure_is_on_record_and_the_rest_goes_on(tmp_path):
    bench = Bench(tmp_path / "bench")
    stages = bench("--stages", "facts", "doctor", "pull", code=1)
    assert stages["doctor"]["state"] == "failed"
    assert "gpu.name: violated" in stages["doctor"]["reason"]
    assert stages["pull"]["state"] == "passed"
