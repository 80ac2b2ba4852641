"""One session on one machine: pull, doctor, sweeps, each with the seconds that it took."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


@dataclass(frozen=True)
class Sweep:
    """A plan's file, and the directory of its sweep."""

    name: str
    file: Path
    folder: Path


class Runner:
    """Runs kvreg's commands in the work folder; `notes` are what the session says of itself."""

    def __init__(
        self,
        kvreg: Sequence[str],
        environment: Mapping[str, str],
        work: Path,
        options: argparse.Namespace,
    ) -> None:
        self.kvreg, self.work, self.options = list(kvreg), work, options
        self.environment = {**environment, **OFFLINE, "KVREG_HOME": str(work / "home")}
        self.notes: dict[str, Any] = {"steps": []}

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Note the seconds of a step."""
        began = time.monotonic()
        try:
            yield
        finally:
            seconds = round(time.monotonic() - began, 1)
            self.notes["steps"].append([name, seconds])
            print(f"{seconds:8.1f} s  {name}", flush=True)

    def plan(self, name: str) -> Sweep:
        """The plan of a preset or file, written where this work folder keeps it."""
        given = Path(name)
        label = given.stem if given.is_file() else name
        target = self.work / f"{label}.toml"
        if not target.exists():
            if given.is_file():
                target.write_bytes(given.read_bytes())
            else:
                self._run("sweep", "plan", "--preset", name, "-o", target)
        return Sweep(label, target, self.work / label)

    def pull(self, root: Path) -> None:
        """Stage the runtime, once a machine."""
        done = self.work / "pulled"
        if done.exists():
            return
        # A reference to a layout is relative to where the caller is.
        source = ["--registry", self.options.registry] if self.options.registry else []
        self._run("pull", self.options.profile, "--no-lock", *source, where=root)
        done.touch()

    def doctor(self, out: Path) -> None:
        """Hold the host against the profile; what it says is kept, and must be all right."""
        answer = self._run(
            "doctor", self.options.profile, "--strict", "--json", code=None, where=self.work
        )
        (out / "doctor.json").write_text(answer.stdout, "utf-8")
        if answer.returncode:
            raise SystemExit(f"doctor refuses this host: {answer.stdout[-3000:]}{answer.stderr}")

    def sweep(self, plan: Sweep, until: float) -> int:
        """Go on with a sweep until then; how many cells are left."""
        chosen = (
            ["--engine-command", self.options.engine_command]
            if self.options.engine_command
            else ["--profile", self.options.profile]
        )
        resume = ["--resume"] if (plan.folder / "ledger.jsonl").exists() else []
        seconds = until - self.options.margin - time.monotonic()
        if seconds > 0:
            command = [
                *(*self.kvreg, "sweep", "run", str(plan.file), "--out", str(plan.folder)),
                *(*chosen, "--sampler", self.options.sampler, *resume),
                *("--caches", str(self.work / "caches"), "--budget", f"{seconds:.0f}"),
            ]
            # It ends by itself before; a cell that takes longer than any before is broken off.
            self._watched(command, until)
        if not (plan.folder / "ledger.jsonl").exists():
            return 1
        status = json.loads(self._run("sweep", "status", plan.folder, "--json").stdout)
        self.notes[plan.name] = {key: status[key] for key in ("plan", "cells", "done", "states")}
        return int(status["cells"]) - int(status["done"])

    def _watched(self, command: Sequence[str], until: float) -> None:
        process = subprocess.Popen(command, env=self.environment, cwd=self.work)
        try:
            process.wait(max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            print("the budget is over: the cell under way is broken off", flush=True)
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def _run(
        self, *words: object, code: int | None = 0, where: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [*self.kvreg, *map(str, words)]
        ended = subprocess.run(
            command,
            env=self.environment,
            cwd=where or self.work,
            capture_output=True,
            text=True,
            check=False,
        )
        if code is not None and ended.returncode != code:
            raise SystemExit(f"{' '.join(command)} ended with {ended.returncode}: {ended.stderr}")
        return ended


def table(folder: Path) -> str:
    """What cells cost and gave, a line each, and how far like ones differ."""
    rows, speeds = [], {}
    for event in _events(folder):
        if event["event"] == "gate":
            rows.append(f"gate tp{event['tp']} {event['state']} {event['seconds']:.1f} s")
        if event["event"] != "finished":
            continue
        speed = event["metrics"].get("output_tokens_per_s")
        times = " ".join(f"{name[:-2]} {value:.1f}" for name, value in event["timing"].items())
        said = f"{speed:.1f} tok/s" if speed else str(event["reason"])[:200]
        total = sum(event["timing"].values())
        rows.append(
            f"{event['cell']} {event['state']} {said}, {event['requests']} requests, "
            f"{total:.1f} s: {times}"
        )
        if speed:
            speeds.setdefault(event["cell"].rpartition(".r")[0], []).append(speed)
    for name, values in speeds.items():
        if len(values) > 1:
            spread = (max(values) - min(values)) / min(values)
            rows.append(f"{name}: {len(values)} like runs differ by {100 * spread:.2f} %")
    return "\n".join(rows)


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    try:
        text = (folder / "ledger.jsonl").read_text("utf-8")
    except FileNotFoundError:
        return
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)
