"""A study that never ran, built to look like one: curves that cross where a table says.

Throughput saturates with concurrency; the larger degree begins lower and saturates later, so that
both curves meet at one place. Time to first token, time per token and memory follow from it with
habits of their own: metrics disagree, as measured ones do.

    python -m tests.support.demonstration FOLDER     cells.csv and nccl.jsonl, to look at a report
"""

import math
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvreg.analysis.table import GATED, MEASURED, CellRow, cells_csv
from tests.support.communication import simulate
from tests.support.studies import m4_answers, m4_design

BOUNDARY_MIB = 14848.0

_START = 0.57  # throughput of two ranks against one, one request at a time
_BEND = 1.6  # the crossing in units of the concurrency at which one rank saturates


def demonstration_rows(seed: int = 23) -> list[CellRow]:
    """720 cells of the principal experiment's design with the published answers."""
    design, answers = m4_design(), m4_answers()
    rng = random.Random(seed)
    return [
        row
        for number, model in enumerate(design["models"])
        for workload, shape in design["workloads"].items()
        for row in _subject(rng, number, model, workload, shape, answers[model, workload], design)
    ]


def _subject(
    rng: random.Random,
    number: int,
    model: str,
    workload: str,
    shape: Mapping[str, int],
    answer: str,
    design: Mapping[str, Any],
) -> Iterator[CellRow]:
    grid = design["concurrency"]
    gated_at = int(answer.partition("@")[2] or 0)
    crossing = _crossing(answer, grid)
    for concurrency in grid:
        for repetition in range(1, design["matched_repetitions"] + 1):
            session = rng.gauss(1, 0.015)  # both arms of a repetition share it
            for tp in design["tensor_parallel"]:
                memory = _memory(rng, number, shape, concurrency, tp)
                if tp == 2 and concurrency == gated_at:
                    peak = round(rng.gauss(design["observed_gated_mean_max_MiB"], 12))
                    yield _row(model, workload, shape, concurrency, tp, repetition, float(peak))
                    continue
                rate = _rate(shape, crossing, concurrency, tp) * (1 + 0.12 * number)
                rate *= session * rng.gauss(1, 0.018)
                yield _row(
                    *(model, workload, shape, concurrency, tp, repetition, memory),
                    metrics=_metrics(rng, shape, concurrency, tp, rate),
                )


def _crossing(answer: str, grid: list[int]) -> float:
    if answer == "none":
        return 1.7 * grid[-1]
    first = 16 if "@" in answer else int(answer)
    return math.sqrt(grid[grid.index(first) - 1] * first)


def _rate(shape: Mapping[str, int], crossing: float, concurrency: int, tp: int) -> float:
    single = (
        26.0 * (shape["output_tokens"] / (shape["input_tokens"] + shape["output_tokens"])) ** 0.35
    )
    if tp == 1:
        return single * concurrency / (1 + _BEND * concurrency / crossing)
    later = (_START * (1 + _BEND) - 1) / crossing
    return _START * single * concurrency / (1 + later * concurrency)


def _metrics(
    rng: random.Random, shape: Mapping[str, int], concurrency: int, tp: int, rate: float
) -> dict[str, float]:
    prefill = 0.55 * shape["input_tokens"] * (0.68 if tp == 2 else 1.0) + (38 if tp == 2 else 0)
    ttft = prefill * (1 + 0.33 * (concurrency - 1)) * rng.gauss(1, 0.03)
    out = shape["output_tokens"]
    e2e = 1000 * concurrency * out / rate
    tpot = max(1.0, (e2e - ttft) / (out - 1))
    return {
        "output_tokens_per_s": rate,
        "requests_per_s": rate / out,
        "ttft_ms": ttft,
        "tpot_ms": tpot,
        "itl_ms": tpot * rng.gauss(1.01, 0.004),
        "e2e_ms": ttft + (out - 1) * tpot,
    }


def _memory(
    rng: random.Random, number: int, shape: Mapping[str, int], concurrency: int, tp: int
) -> float:
    held = (12920 if tp == 1 else 12560) + 95 * number
    working = 15 * math.sqrt(concurrency) * (1 + shape["input_tokens"] / 900)
    return float(round(held + working * (1.05 if tp == 2 else 1) + rng.gauss(0, 7)))


def _row(
    model: str,
    workload: str,
    shape: Mapping[str, int],
    concurrency: int,
    tp: int,
    repetition: int,
    memory: float,
    metrics: Mapping[str, float] | None = None,
) -> CellRow:
    return CellRow(
        model=model,
        workload=workload,
        input_tokens=shape["input_tokens"],
        output_tokens=shape["output_tokens"],
        concurrency=concurrency,
        tp=tp,
        repetition=repetition,
        state=MEASURED if metrics else GATED,
        max_gpu_memory_mib=memory,
        **{name: float(f"{value:.6g}") for name, value in (metrics or {}).items()},
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cells.csv").write_text(cells_csv(demonstration_rows()))
    (folder / "nccl.jsonl").unlink(missing_ok=True)
    simulate(folder / "nccl.jsonl", latency_us=112.135079, bandwidth=4.063916)
