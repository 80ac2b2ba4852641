"""Ranks that really run: over gloo where there is a torch, and processes that fail anywhere.

torch is looked for in KVREG_TEST_TORCH (an interpreter), in this interpreter, and where the slow
tests keep theirs. Device events and captured graphs need GPUs and are not run here.
"""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvreg.errors import ContractError, NotFoundError, UsageError
from kvreg.nccl import worker as worker_program
from kvreg.nccl.design import Design
from kvreg.nccl.measurement import Host, choose_backend, describe, environment, measure, survey_host
from kvreg.nccl.record import open_record, read_record

SMALL = Design(backend="gloo", payloads=(1024, 65536, 2**20), repetitions=2, collectives=6)
NO_GPU = Host(sys.executable, {"torch": "none", "devices": []})
TWO_GPUS = Host(sys.executable, {"torch": "none", "devices": [{"name": "Tesla T4"}] * 2})


@pytest.fixture(scope="session")
def torch_python() -> str:
    """An interpreter that has torch."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    kept = cache / "kvreg-test-environments" / "torch" / "bin" / "python"
    if named := os.environ.get("KVREG_TEST_TORCH"):
        return named
    if find_spec("torch"):
        return sys.executable
    if kept.exists():
        return str(kept)
    pytest.skip("no torch: KVREG_TEST_TORCH names an interpreter that has one")


def interpreter(folder: Path, script: str) -> str:
    """A program that takes an interpreter's place and does what `script` says."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def alive(text: str) -> list[int]:
    """Processes whose working directory or command line has `text` in it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                seen = f"{(entry / 'cwd').readlink()} {(entry / 'cmdline').read_text()}"
            except OSError:
                continue
            if text in seen:
                found.append(int(entry.name))
    return found


def gone(text: str, within_s: float = 20) -> bool:
    """Whether no such process is left, some time after it was ended."""
    deadline = time.monotonic() + within_s
    while alive(text) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(text)


def test_backends_follow_the_hardware():
    assert choose_backend(None, 2, NO_GPU) == "gloo"
    assert choose_backend(None, 2, TWO_GPUS) == "nccl"
    assert choose_backend("gloo", 2, TWO_GPUS) == "gloo"
    for wanted, ranks, host in ((None, 4, TWO_GPUS), ("nccl", 2, NO_GPU)):
        with pytest.raises(UsageError, match="a GPU for every rank"):
            choose_backend(wanted, ranks, host)


def test_peer_access_is_turned_off_and_recorded(monkeypatch):
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("SOME_SECRET", "hidden")
    off = describe(NO_GPU, environment(Design(peer=False)))["variables"]
    assert off["NCCL_P2P_DISABLE"] == "1" and off["NCCL_ALGO"] == "Ring"
    assert "hidden" not in json.dumps(off)
    assert "NCCL_P2P_DISABLE" not in environment(Design())


@pytest.mark.skipif(find_spec("torch") is not None, reason="there is a torch here")
def test_an_interpreter_without_torch_is_named():
    with pytest.raises(NotFoundError, match="no torch") as caught:
        survey_host(sys.executable)
    assert caught.value.found == sys.executable


def test_a_rank_that_fails_is_reported_with_its_log(tmp_path):
    python = interpreter(tmp_path, "echo 'NCCL WARN: no such device'; exit 3")
    with open_record(tmp_path / "nccl.jsonl", SMALL) as record:
        with pytest.raises(ContractError, match=r"rank \d ended with status 3") as caught:
            measure(record, Host(python, {"devices": []}))
        assert record.missing() == [0, 1]
    assert "NCCL WARN" in caught.value.found


def test_a_rank_that_hangs_is_ended_with_what_it_started(tmp_path):
    marker = "86399.25"
    python = interpreter(tmp_path, f"sleep {marker} & sleep {marker}")
    started = time.monotonic()
    with (
        open_record(tmp_path / "nccl.jsonl", SMALL) as record,
        pytest.raises(ContractError, match="no result after 1 s"),
    ):
        measure(record, Host(python, {"devices": []}), timeout_s=1)
    assert time.monotonic() - started < 20
    assert gone(marker)


@pytest.mark.timeout(300)
def test_gloo_measures_host_memory_and_says_so(torch_python, tmp_path):
    out = tmp_path / "nccl.jsonl"
    argv = [
        *(sys.executable, "-m", "kvreg", "nccl", "--backend", "gloo", "--python", torch_python),
        *("--payloads", "1KiB,64KiB,4MiB", "--repetitions", "2", "--collectives", "6"),
        *("--out", str(out), "--json"),
    ]
    run = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "says nothing about GPUs" in run.stderr
    result = json.loads(run.stdout)
    assert result["design"]["backend"] == "gloo" and result["environment"]["devices"] == []
    host = result["timers"]["host"]
    assert host["observations"] == 36 and set(host["fits"]) == {"plain", "relative"}
    assert [row["bytes"] for row in host["payloads"]] == [1024, 65536, 4 * 2**20]
    assert host["payloads"][0]["us"] < host["payloads"][2]["us"]
    for timer in ("event", "graph"):
        assert not result["timers"][timer]["available"]
        assert "no device events" in result["timers"][timer]["reason"]
    # All there: nothing runs again, and the same comes out.
    before = out.read_bytes()
    again = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert "2 of 2 repetitions kept" in again.stderr
    assert out.read_bytes() == before and json.loads(again.stdout) == result


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_session_leaves_no_rank_and_is_gone_on_with(torch_python, tmp_path):
    out = tmp_path / "nccl.jsonl"
    argv = [
        *(sys.executable, "-m", "kvreg", "nccl", "--backend", "gloo", "--python", torch_python),
        *("--payloads", "1KiB", "--repetitions", "3", "--collectives", "4", "--out", str(out)),
    ]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL) as session:
        while not out.exists() or len(out.read_bytes().splitlines()) < 2:
            assert session.poll() is None
            time.sleep(0.05)
        while not [pid for pid in alive(f"{tmp_path}/kvreg-nccl-") if pid != session.pid]:
            assert session.poll() is None
            time.sleep(0.01)
        session.send_signal(signal.SIGKILL)
        session.wait()
    assert gone(f"{tmp_path}/kvreg-nccl-")
    kept = read_record(out)
    assert 0 in kept.repetitions and kept.missing()
    subprocess.run(argv, env=environment, check=True, capture_output=True)
    assert read_record(out).missing() == []
    assert out.read_bytes().startswith(kept.path.read_bytes()[:100])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_agree_on_the_sum_and_the_slowest_is_kept(torch_python, tmp_path, ranks):
    design = Design(
        backend="gloo", ranks=ranks, payloads=(1024, 4096), repetitions=1, collectives=3,
        dtype="float16",
    )  # fmt: skip
    with open_record(tmp_path / "nccl.jsonl", design) as record:
        measure(record, survey_host(torch_python))
        [repetition] = record.repetitions.values()
    assert {sample["bytes"] for sample in repetition.samples} == {1024, 4096}
    assert all(len(sample["us"]) == 3 for sample in repetition.samples)
    assert repetition.environment["variables"]["GLOO_SOCKET_IFNAME"]


AGREE = """
import sys, threading
import torch.distributed as dist
sys.path.insert(0, sys.argv[1])
import worker

said = {}
def rank(number, reason):
    store = dist.FileStore(sys.argv[2], 3)
    said[number] = worker.Agreement(store, number, 3, 1024).exchange(reason)
reasons = sys.argv[3].split(",")
threads = [threading.Thread(target=rank, args=at) for at in enumerate(reasons)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print([said[number] for number in range(3)])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reasons", "agreed"), [(",,", []), (",rank 1: no capture,", ["rank 1: no capture"])]
)
def test_ranks_learn_that_one_could_not_capture(torch_python, tmp_path, reasons, agreed):
    worker = Path(worker_program.__file__).parent
    argv = [torch_python, "-c", AGREE, worker, tmp_path / "store", reasons]
    run = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str([agreed] * 3)
