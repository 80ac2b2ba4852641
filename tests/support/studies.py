"""Simulated studies: cell tables that were built to have known answers."""

import csv
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kvreg.analysis.metrics import METRICS
from kvreg.analysis.table import GATED, MEASURED, CellRow
from kvreg.model.canonical import canonical_json
from kvreg.sweep.cells import cell_id
from kvreg.sweep.plan import load_plan

SHARED = Path(__file__).parents[2] / "tests" / "data" / "seeds"


def m4_design() -> dict[str, object]:
    """The principal experiment's design."""
    return json.loads((SHARED / "m4_design.json").read_text())


def m4_answers() -> dict[tuple[str, str], str]:
    """The published table by (model, workload)."""
    with (SHARED / "m4_first_sustained_favorable.csv").open(newline="") as file:
        return {
            (row["model"], workload): row[workload]
            for row in csv.DictReader(file)
            for workload in ("short", "balanced", "prefill_heavy")
        }


def m4_rows(seed: int = 4) -> list[CellRow]:
    """720 cells with noise, whose true curves cross where the published table says."""
    design, answers = m4_design(), m4_answers()
    rng = random.Random(seed)
    rows = []
    for model in design["models"]:
        for workload, shape in design["workloads"].items():
            answer = answers[model, workload]
            for concurrency in design["concurrency"]:
                rows += _point(
                    rng, model, workload, shape, concurrency, answer, design["matched_repetitions"]
                )
    return rows


def _point(
    rng: random.Random,
    model: str,
    workload: str,
    shape: Mapping[str, int],
    concurrency: int,
    answer: str,
    repetitions: int,
) -> Iterator[CellRow]:
    gated_at = int(answer.partition("@")[2] or 0)
    # favourable at 16 and 32 below the gate, as the text tells of the gated subject
    first = 16 if gated_at else 10**9 if answer == "none" else int(answer)
    gain = 1.25 if concurrency >= first else 0.8
    base = 30 * concurrency**0.7
    for repetition in range(1, repetitions + 1):
        drift = rng.gauss(1, 0.02)  # of the session: both arms share it
        for tp, factor in ((1, 1.0), (2, gain)):
            if tp == 2 and concurrency == gated_at:
                yield cell(
                    model, workload, shape, concurrency, tp, repetition, None, memory=14895.0
                )
                continue
            rate = base * factor * drift * rng.gauss(1, 0.02)
            yield cell(model, workload, shape, concurrency, tp, repetition, rate)


def cell(
    model: str = "m",
    workload: str = "w",
    shape: Mapping[str, int] | None = None,
    concurrency: int = 1,
    tp: int = 1,
    repetition: int = 1,
    rate: float | None = 100.0,
    *,
    state: str | None = None,
    memory: float | None = 14000.0,
) -> CellRow:
    """A cell whose metrics all follow from its output rate; None means gated (or `state`)."""
    shape = shape or {"input_tokens": 128, "output_tokens": 64}
    out = shape["output_tokens"]
    if rate is None:
        return CellRow(
            model=model,
            workload=workload,
            input_tokens=shape["input_tokens"],
            output_tokens=out,
            concurrency=concurrency,
            tp=tp,
            repetition=repetition,
            state=state or GATED,
            max_gpu_memory_mib=memory,
        )
    tpot = 1000 * concurrency / rate
    return CellRow(
        model=model,
        workload=workload,
        input_tokens=shape["input_tokens"],
        output_tokens=out,
        concurrency=concurrency,
        tp=tp,
        repetition=repetition,
        state=state or MEASURED,
        output_tokens_per_s=rate,
        requests_per_s=rate / out,
        ttft_ms=20 * tpot,
        tpot_ms=tpot,
        itl_ms=tpot,
        e2e_ms=20 * tpot + (out - 1) * tpot,
        max_gpu_memory_mib=memory,
    )


def study(
    rates: Mapping[int, Mapping[int, Sequence[float | None]]],
    model: str = "m",
    workload: str = "w",
) -> list[CellRow]:
    """Rows from ``{concurrency: {tp: [rate of repetition 1, 2, ..]}}``; None is gated."""
    return [
        cell(model, workload, None, concurrency, tp, number, rate)
        for concurrency, arms in rates.items()
        for tp, values in arms.items()
        for number, rate in enumerate(values, start=1)
    ]


def m2_rows() -> list[CellRow]:
    """The exploratory sweep's table: one server a cell."""
    with (SHARED / "m2_qwen2.5_3b_output_tok_s.csv").open(newline="") as file:
        return [
            cell(
                "Qwen2.5-3B-Instruct",
                "exploratory",
                None,
                int(row["concurrency"]),
                tp,
                1,
                float(row[f"tp{tp}"]),
            )
            for row in csv.DictReader(file)
            for tp in (1, 2)
        ]


def write_sweep(
    directory: Path,
    plan: bytes,
    results: Mapping[str, Mapping[str, object]],
    *,
    identity: Mapping[str, object] | None = None,
    facts: Mapping[str, object] | None = None,
    gates: Sequence[Mapping[str, object]] = (),
) -> Path:
    """A sweep directory: `results` has state, reason and metrics of each cell id."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "plan.toml").write_bytes(plan)
    about = {
        "schema": 1,
        "plan": load_plan(directory).digest,
        "artifact": "sha256:" + "a" * 64,
        "profile": "sha256:" + "b" * 64,
        "facts": "sha256:" + "c" * 64,
        "engine": {"command": ["vllm", "serve"], "version": "0.18.1"},
        "kvreg": "0.1.0",
        "created": "2026-01-01T00:00:00Z",
    }
    (directory / "identity.json").write_text(json.dumps({**about, **(identity or {})}))
    if facts is not None:
        (directory / "facts.json").write_text(json.dumps(facts))
    head = {"schema": 1, "time": "2026-01-01T00:00:00.000Z", "session": "s"}
    events: list[Mapping[str, object]] = [{**head, "event": "gate", **gate} for gate in gates]
    for name, result in results.items():
        events.append({**head, "event": "started", "cell": name, "attempt": 1})
        end = {"reason": None, "metrics": {}, "timing": {}, **result}
        events.append({**head, "event": "finished", "cell": name, "attempt": 1, **end})
    (directory / "ledger.jsonl").write_bytes(
        b"".join(canonical_json(event) + b"\n" for event in events)
    )
    return directory


def results_of(rows: Sequence[CellRow]) -> dict[str, dict[str, object]]:
    """What `write_sweep` takes, from rows."""
    return {
        cell_id(row.model, row.workload, row.concurrency, row.tp, row.repetition): {
            "state": row.state,
            "reason": row.reason,
            "metrics": {
                name: row.value(name)
                for name in (*METRICS, "max_gpu_memory_mib")
                if row.value(name) is not None
            },
        }
        for row in rows
    }
