"""What a sweep cost: wall-clock by phase, from its ledger."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

PHASES = {
    "start_s": "start-up",
    "warmup_s": "warm-up",
    "measure_s": "measurement",
    "stop_s": "stop",
    "other_s": "everything else",
}
"""The phases that a ledger's ``timing`` has, in their order."""


def cost_of(directory: Path) -> dict[str, Any] | None:
    """Mean seconds of each phase by TP degree, over the cells that were measured, and totals.

    ::

        by_tp     [{"tp", "cells", "mean": {phase: seconds}, "mean_total"}]
        total_s   seconds of all finished attempts, measured or not
        finished  finished attempts; broken: attempts that were cut off

    None for a ledger without timings.
    """
    from kvreg.sweep.ledger import MEASURED, read_ledger
    from kvreg.sweep.plan import load_plan

    ledger = read_ledger(directory)
    degrees = {cell.id: cell.tp for cell in load_plan(directory).cells()}
    finished = [event for event in ledger.events if event["event"] == "finished"]
    timed = [event for event in finished if event.get("timing")]
    if not timed:
        return None
    measured: dict[int, list[dict[str, float]]] = {}
    for event in timed:
        if event["state"] == MEASURED and event["cell"] in degrees:
            measured.setdefault(degrees[event["cell"]], []).append(event["timing"])
    return {
        "by_tp": [
            {
                "tp": tp,
                "cells": len(timings),
                "mean": {phase: _mean(t.get(phase) for t in timings) for phase in PHASES},
                "mean_total": _mean(_total(t) for t in timings),
            }
            for tp, timings in sorted(measured.items())
        ],
        "total_s": sum(_total(event["timing"]) for event in timed),
        "finished": len(finished),
        "broken": sum(ledger.broken.values()),
    }


def _total(timing: dict[str, float]) -> float:
    return sum(timing.get(phase) or 0.0 for phase in PHASES)


def _mean(values: Iterable[float | None]) -> float:
    found = [value or 0.0 for value in values]
    return sum(found) / len(found)
