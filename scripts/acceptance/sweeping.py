"""Stages that measure: a boundary, a sweep that is killed and resumed, what comes of it."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acceptance.common import Acceptance, alive, picked
from acceptance.shape import sweep_plan
from acceptance.state import NoTime, StageFailed

SWEEP, BOUNDARY = "sweep", "boundary"


def boundary(a: Acceptance) -> Mapping[str, Any]:
    """A cell that passes a low memory boundary ends RESOURCE_GATED, with no throughput."""
    folder = a.results / BOUNDARY
    plan = _plan(
        a, "boundary.toml", concurrency=[1], repetitions=1, boundary=a.choices.low_boundary
    )
    resume = ["--resume"] if (folder / "ledger.jsonl").exists() else []
    a.commands.json(
        *("sweep", "run", plan, "--out", folder, *a.engine(), *resume),
        timeout=max(60, a.left - 10),
    )
    states = {event["cell"]: event for event in _ledger(folder) if event["event"] == "finished"}
    if {event["state"] for event in states.values()} != {"RESOURCE_GATED"}:
        raise StageFailed(f"the cells ended otherwise: {[e['state'] for e in states.values()]}")
    if any("output_tokens_per_s" in event["metrics"] for event in states.values()):
        raise StageFailed("a gated cell has a throughput")
    return {name: event["reason"] for name, event in states.items()}


def killed(a: Acceptance) -> Mapping[str, Any]:
    """The runner is killed outright in the middle of a cell; its server goes with it."""
    folder = a.results / SWEEP
    plan = _plan(a, "sweep.toml")
    if _finished(folder) or _broken(folder):
        return {"before": "this sweep was killed in an earlier session"}
    command = [*a.commands.kvreg, "sweep", "run", str(plan), "--out", str(folder), *a.engine()]
    log = a.results / "logs" / "killed.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, env=a.commands.environment, stdout=stream, stderr=stream
        )
    try:
        until = time.monotonic() + a.left - 30
        while (running := _serving(folder)) is None:
            if process.poll() is not None:
                raise StageFailed(f"the sweep ended by itself: {log.read_text()[-1500:]}")
            if time.monotonic() > until:
                raise NoTime("no cell had a ready server in time")
            time.sleep(0.2)
        time.sleep(1)
    finally:
        process.kill()
        process.wait()
    cell, pid = running
    gone = time.monotonic()
    while alive(pid) and time.monotonic() - gone < 90:
        time.sleep(0.2)
    if alive(pid):
        raise StageFailed(f"the server of {cell} outlived the killed runner")
    return {"cell": cell, "server_gone_s": round(time.monotonic() - gone, 1)}


def sweep(a: Acceptance) -> Mapping[str, Any]:
    """The sweep goes on from where it was killed, and ends with every cell measured."""
    folder = a.results / SWEEP
    plan = _plan(a, "sweep.toml")
    answer = a.commands.json(
        *("sweep", "run", plan, "--out", folder, "--resume", *a.engine()),
        *("--hours", round(max(a.left - 45, 1) / 3600, 4)),
        timeout=max(60, a.left),
    )
    status = a.commands.json("sweep", "status", folder)
    if status["done"] < status["cells"]:
        raise NoTime(f"{status['done']} of {status['cells']} cells done; go on in another session")
    if status["states"] != {"MEASURED": status["cells"]}:
        raise StageFailed(f"not every cell was measured: {status['states']}")
    broken = _broken(folder)
    if not broken:
        raise StageFailed("the attempt that was killed is not on record")
    return {"states": status["states"], "broken": broken, "digest": answer.get("plan")}


def nccl(a: Acceptance) -> Mapping[str, Any]:
    """All-reduce between the GPUs, where there are two."""
    if max(a.degrees()) < 2:
        return {"left": "one GPU: nothing to reduce between"}
    out = a.results / "nccl.jsonl"
    sizes = "1KiB,64KiB,1MiB,16MiB,256MiB"
    return dict(
        a.commands.json(
            *("nccl", "--out", out, "--payloads", sizes, "--repetitions", 2, "--collectives", 50),
            timeout=max(60, a.left - 10),
        )
    )


def judged(a: Acceptance) -> Mapping[str, Any]:
    """Capacity predicted against observed; the analysis and its report."""
    folder = a.results / SWEEP
    model, _ = a.model()
    tp = ",".join(map(str, a.degrees()))
    capacity = a.commands.json("capacity", model / "config.json", "--tp", tp, "--evidence", folder)
    (a.results / "capacity.json").write_text(json.dumps(capacity, indent=1), "utf-8")
    analysis = a.commands.json("sweep", "analyze", folder)
    (a.results / "analysis.json").write_text(json.dumps(analysis, indent=1), "utf-8")
    report = a.results / "report"
    shutil.rmtree(report, ignore_errors=True)
    a.commands.client("sweep", "report", folder, "--out", report, timeout=300)
    return {**picked(capacity, "observed", "beyond"), "cells": _cells(folder)}


def evidence(a: Acceptance) -> Mapping[str, Any]:
    """The sweeps as files that survive the machine, and as referrers where the registry is here."""
    packed = {}
    for name in (SWEEP, BOUNDARY):
        target = a.results / f"{name}.evidence.tar"
        found = a.commands.json("sweep", "pack", a.results / name, "-o", target)
        packed[name] = picked(found, "digest", "size", "artifact", "states", "files")
        if a.choices.evidence_registry:
            words = ["--registry", a.choices.evidence_registry]
            packed[name]["published"] = a.commands.json(
                "sweep", "publish", a.results / name, *words
            )
    return packed


def _plan(a: Acceptance, name: str, **changes: Any) -> Path:
    """Write a plan. What it says of paths makes it the plan of this work folder."""
    path = a.results / name
    if path.exists():
        return path
    model, tokenizer = a.model()
    mib = a.gpu_mib()
    chosen: dict[str, Any] = {
        "tp": a.degrees(),
        "concurrency": list(a.choices.concurrency),
        "repetitions": a.choices.repetitions,
        "utilization": a.utilization(),
        "boundary": int(0.97 * mib) if mib else 14_848,
        "measure_s": a.choices.measure_s,
        "options": "".join(f"{line}\n" for line in (*_defaults(a), *a.choices.options)),
    }
    path.write_text(sweep_plan(model, tokenizer, **{**chosen, **changes}), "utf-8")
    return path


def _defaults(a: Acceptance) -> list[str]:
    """The profile's engine options as lines of a plan: a sweep takes its plan's alone."""
    if a.choices.engine_command:
        return []
    engine = a.commands.json("profile", "show", a.choices.profile)["runtime"].get("engine", {})
    return [f"{name} = {json.dumps(value)}" for name, value in engine.get("set", {}).items()]


def _ledger(folder: Path) -> list[dict[str, Any]]:
    try:
        lines = (folder / "ledger.jsonl").read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []
    events = []
    for line in lines:
        with contextlib.suppress(ValueError):
            events.append(json.loads(line))
    return events


def _attempts(folder: Path, event: str) -> list[tuple[str, int]]:
    return [(e["cell"], e["attempt"]) for e in _ledger(folder) if e["event"] == event]


def _finished(folder: Path) -> bool:
    return bool(_attempts(folder, "finished"))


def _broken(folder: Path) -> list[str]:
    over = set(_attempts(folder, "finished"))
    return [
        f"{cell} attempt {n}" for cell, n in _attempts(folder, "started") if (cell, n) not in over
    ]


def _serving(folder: Path) -> tuple[str, int] | None:
    """Cell and process of a server that has answered, of the attempt that is under way."""
    for cell, number in _attempts(folder, "started"):
        attempt = folder / "cells" / cell / f"attempt-{number}"
        log, process = attempt / "server.log", attempt / "server.json"
        with contextlib.suppress(OSError, ValueError, KeyError):
            text = log.read_text("utf-8", "replace")
            if "startup complete" in text or "simulated server on" in text:
                return cell, int(json.loads(process.read_text("utf-8"))["pid"])
    return None


def _cells(folder: Path) -> list[dict[str, Any]]:
    wanted = ("output_tokens_per_s", "ttft_ms", "tpot_ms", "e2e_ms", "max_gpu_memory_mib")
    return [
        {"cell": e["cell"], "state": e["state"], **picked(e["metrics"], *wanted), **e["timing"]}
        for e in _ledger(folder)
        if e["event"] == "finished"
    ]
