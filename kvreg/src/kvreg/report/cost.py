"""What a sweep cost: wall-clock by phase, from its ledger."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvreg.analysis.text import grid

PHASES = {
    "start_s": "start-up",
    "warmup_s": "warm-up",
    "measure_s": "measurement",
    "stop_s": "stop",
    "other_s": "everything else",
}
"""The phases that a ledger's ``timing`` has, in their order."""


def cost_of(directory: Path) -> dict[str, Any] | None:
    """Seconds of each phase: of every finished attempt, in all, and on average by TP degree.

    ::

        cells     [{"cell", "attempt", "tp", "state", "session", phase: seconds, .., "total_s"}],
                  every finished attempt in the order in which it ended, measured or not
        by_tp     [{"tp", "cells", "mean": {phase: seconds}, "mean_total"}] of measured cells
        total     {phase: seconds} of all finished attempts; total_s: their sum
        gates_s   seconds of the compatibility gates, which also warm the caches
        sessions  how many there were
        finished  finished attempts; broken: attempts that were cut off, of unknown length

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
        "cells": [
            {
                **{name: event[name] for name in ("cell", "attempt", "state")},
                "tp": degrees.get(event["cell"]),
                "session": event.get("session"),
                **{phase: event["timing"].get(phase) or 0.0 for phase in PHASES},
                "total_s": _total(event["timing"]),
            }
            for event in timed
        ],
        "by_tp": [
            {
                "tp": tp,
                "cells": len(timings),
                "mean": {phase: _mean(t.get(phase) for t in timings) for phase in PHASES},
                "mean_total": _mean(_total(t) for t in timings),
            }
            for tp, timings in sorted(measured.items())
        ],
        "total": {
            phase: sum(event["timing"].get(phase) or 0.0 for event in timed) for phase in PHASES
        },
        "gates_s": sum(
            event.get("seconds") or 0.0 for event in ledger.events if event["event"] == "gate"
        ),
        "sessions": len({event.get("session") for event in ledger.events}),
        "total_s": sum(_total(event["timing"]) for event in timed),
        "finished": len(finished),
        "broken": sum(ledger.broken.values()),
    }


def cost_text(cost: Mapping[str, Any], *, cells: bool = False) -> str:
    """`cost_of` as text: means by degree and totals; with `cells` every attempt as well."""
    head = ["", "cells", *PHASES.values(), "all"]
    rows: list[list[object]] = [
        [f"TP{entry['tp']}, mean", entry["cells"], *entry["mean"].values(), entry["mean_total"]]
        for entry in cost["by_tp"]
    ]
    rows.append(["all, total", cost["finished"], *cost["total"].values(), cost["total_s"]])
    broken = f"; {cost['broken']} attempts cut off" if cost["broken"] else ""
    gates = f"; gates {cost['gates_s']:.0f} s" if cost["gates_s"] else ""
    parts = [
        f"what it cost, seconds of wall-clock, in {cost['sessions']} "
        f"session{'' if cost['sessions'] == 1 else 's'}{gates}{broken}\n{grid(head, _short(rows))}"
    ]
    if cells:
        parts.append(
            grid(
                ["cell", "attempt", *PHASES.values(), "all"],
                _short(
                    [c["cell"], c["attempt"], *(c[phase] for phase in PHASES), c["total_s"]]
                    for c in cost["cells"]
                ),
            )
        )
    return "\n\n".join(parts)


def _short(rows: Iterable[Sequence[object]]) -> list[list[object]]:
    return [[f"{v:.1f}" if isinstance(v, float) else v for v in row] for row in rows]


def _total(timing: dict[str, float]) -> float:
    return sum(timing.get(phase) or 0.0 for phase in PHASES)


def _mean(values: Iterable[float | None]) -> float:
    found = [value or 0.0 for value in values]
    return sum(found) / len(found)
