"""Sweep directories as a runner leaves them, made from known numbers."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kvreg.sweep.cells import Cell
from kvreg.sweep.ledger import FAILED, MEASURED, RESOURCE_GATED, LedgerWriter
from kvreg.sweep.plan import load_plan
from kvreg.sweep.presets import read_preset

ARTIFACT = "sha256:" + "a1" * 32
FACTS = "sha256:" + "f2" * 32
TIMING = {"start_s": 60.0, "warmup_s": 2.0, "measure_s": 25.0, "stop_s": 4.0, "other_s": 1.5}


def rate_of(cell: Cell) -> float:
    """TP2 pays from concurrency 4 on; repetitions differ by little."""
    gain = 1.3 if cell.concurrency >= 4 else 0.7
    return (
        20.0 * cell.concurrency**0.8 * (gain if cell.tp == 2 else 1) * (1 + cell.repetition / 200)
    )


def write_sweep(
    folder: Path,
    *,
    name: str = "smoke",
    states: Mapping[str, str] | None = None,
    without: Callable[[Cell], bool] = lambda cell: False,
) -> Path:
    """A finished sweep of a preset; `states` are those of cells that were not measured, by id,
    and cells that `without` picks have no result."""
    folder.mkdir(parents=True)
    (folder / "plan.toml").write_bytes(read_preset(name))
    plan = load_plan(folder)
    identity: dict[str, Any] = {
        "schema": 1,
        "plan": plan.digest,
        "artifact": ARTIFACT,
        "profile": None,
        "facts": FACTS,
        "engine": {"command": ["vllm", "serve"], "version": "0.18.1"},
        "kvreg": "0.1.0",
        "created": "2026-05-22T10:00:00Z",
    }
    facts = {
        "gpus": [{"name": "Tesla T4"}, {"name": "Tesla T4"}],
        "topology": [["X", "PHB"], ["PHB", "X"]],
        "driver": {"version": "580.159.04"},
        "packages": {"a-private-package": "1"},
    }
    (folder / "identity.json").write_text(json.dumps(identity))
    (folder / "facts.json").write_text(json.dumps(facts))
    ledger = LedgerWriter(folder / "ledger.jsonl", "session-1")
    for cell in plan.cells():
        if without(cell):
            continue
        logs = folder / "cells" / cell.id / "attempt-1"
        logs.mkdir(parents=True)
        (logs / "server.log").write_text(f"log of {cell.id}\n")
        ledger.append("started", cell=cell.id, attempt=1)
        state = (states or {}).get(cell.id, MEASURED)
        ledger.append(
            "finished", cell=cell.id, attempt=1, state=state, timing=TIMING, **_outcome(cell, state)
        )
    ledger.close()
    return folder


def _outcome(cell: Cell, state: str) -> dict[str, Any]:
    memory = {
        "max_gpu_memory_mib": 14900 if state == RESOURCE_GATED else 9000 + 40 * cell.concurrency
    }
    if state != MEASURED:
        reasons = {RESOURCE_GATED: "passed 14848 MiB", FAILED: "the server ended with status 1"}
        return {"reason": reasons.get(state), "metrics": memory}
    rate = rate_of(cell)
    per_token = 1000 * cell.concurrency / rate
    metrics = {
        "output_tokens_per_s": rate,
        "requests_per_s": rate / cell.output_tokens,
        "ttft_ms": 3 * per_token,
        "tpot_ms": per_token,
        "itl_ms": per_token,
        "e2e_ms": per_token * (cell.output_tokens + 2),
        **memory,
    }
    return {"reason": None, "metrics": metrics}
