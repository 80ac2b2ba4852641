"""A sweep that is carried from machine to machine, with simulated servers."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvreg.sweep.evidence import pack
from kvreg.sweep.ledger import read_ledger
from kvreg.sweep.plan import load_plan
from kvreg.sweep.presets import read_preset

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "sweep_session.py"
SUPPORT = ROOT / "tests" / "support"


def small_plan() -> str:
    """Four cells of two pairs, with the limits of a simulation."""
    text = read_preset("h200x2-pilot").decode()
    changes = {
        r"^concurrency = .*": "concurrency = [2]",
        r"^(start|warm|measure|stop|other)_s = (35|60|20|4|1)\b": r"\1_s = 0.1",
        r"^(input|output)_tokens = .*": r"\1_tokens = 8",
        r"^min_seconds = 15": "min_seconds = 0.3",
        r"^max_seconds = 20": "max_seconds = 1",
        r"^idle_s = 60": "idle_s = 10",
    }
    for old, new in changes.items():
        text, count = re.subn(old, new, text, flags=re.MULTILINE)
        assert count, old
    return text


class Machine:
    """A machine with nothing of the sweep: `restore` of what another one left is all it has."""

    def __init__(self, root: Path, work: Path) -> None:
        self.root, self.work = root, work
        (root / "gpus").mkdir(parents=True, exist_ok=True)
        self.carried = root / "carried"
        self.carried.mkdir(exist_ok=True)
        self.plan = root / "small.toml"
        self.plan.write_text(small_plan())

    def call(self, name: str, budget: float, code: int, hang: str = "nothing") -> Path:
        out, faults = self.root / name, self.root / "faults.json"
        cells = [cell.id for cell in load_plan(self.plan).cells() if cell.id.endswith(hang)]
        faults.write_text(json.dumps({cell: {"kind": "start-hang"} for cell in cells}))
        server = shlex.join([sys.executable, str(SUPPORT / "openai_server.py")])
        monitor = [sys.executable, str(SUPPORT / "simulated_gpus.py"), str(self.root / "gpus")]
        command = [
            *(sys.executable, SCRIPT, self.plan, "--engine-command", server),
            *("--sampler", f"command:{shlex.join(monitor)}", "--carried", self.carried),
            *("--work", self.work, "--out", out, "--budget", budget),
            *("--margin", 2),
        ]
        ended = subprocess.run(
            [str(word) for word in command],
            env={
                **os.environ,
                "KVREG_SIMULATED_GPUS": str(self.root / "gpus"),
                "KVREG_SIMULATED_FAULTS": str(faults),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert ended.returncode == code, ended.stdout + ended.stderr
        return out


def merge(target: Path, *calls: Path) -> str:
    command = [sys.executable, SCRIPT, "--merge", target, "--from", *calls]
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=True
    ).stdout


def test_a_sweep_goes_on_from_machine_to_machine_and_is_whole_in_the_end(tmp_path):
    work = tmp_path / "work"
    machine = Machine(tmp_path, work)
    # The first pair with its gates is expected to take a second, and four are kept back.
    machine.call("none", 4.5, 75)
    assert not (work / "small" / "cells").exists()
    # The second pair takes much longer than the first: it is broken off, and packed all the same.
    first = machine.call("first", 24, 75, hang=".r2")
    done = set(read_ledger(work / "small").results)
    assert {cell[-2:] for cell in done} <= {"r1"}  # how far it comes is the machine's affair
    for name in ("small.state.tar.xz", "caches.tar.xz"):
        shutil.copy2(first / name, machine.carried / name)
    shutil.rmtree(work)
    second = machine.call("second", 150, 0)
    assert json.loads((second / "session.json").read_text())["small"]["done"] == 4
    # A cache that came along needs no gate; the cells of the first call were not brought again.
    ledger = read_ledger(work / "small")
    assert sum(event["event"] == "gate" for event in ledger.events) == 2
    here = {path.name for path in (work / "small" / "cells").iterdir()}
    assert here == set(ledger.results) - done
    whole = tmp_path / "whole"
    assert "small: 4 cells" in merge(whole, tmp_path / "none", first, second)
    assert pack(whole / "small", tmp_path / "evidence.tar").states == {"MEASURED": 4}


def test_a_state_that_is_not_this_sweeps_is_refused(tmp_path):
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        from sweeps.carrying import Mismatch, restore, save
    finally:
        sys.path.pop(0)
    here, there, out = tmp_path / "a" / "s", tmp_path / "b" / "s", tmp_path / "out"
    for folder in (here, there, out):
        folder.mkdir(parents=True)
    (here / "ledger.jsonl").write_bytes(b"one\ntwo\n")
    save(here, out)
    (there / "ledger.jsonl").write_bytes(b"one\nother\n")
    with pytest.raises(Mismatch):
        restore(out, tmp_path / "b", "s")
    # A torn line is not yet a line; a longer ledger is the later one and stays.
    (there / "ledger.jsonl").write_bytes(b"one\ntw")
    restore(out, tmp_path / "b", "s")
    assert (there / "ledger.jsonl").read_bytes() == b"one\ntwo\n"
    (there / "ledger.jsonl").write_bytes(b"one\ntwo\nthree\n")
    restore(out, tmp_path / "b", "s")
    assert (there / "ledger.jsonl").read_bytes() == b"one\ntwo\nthree\n"
