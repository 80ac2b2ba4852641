"""How far a sweep is: cells by state, broken attempts, time used and left."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvreg.sweep.cells import Cell
from kvreg.sweep.ledger import STATES, Ledger, Result, read_ledger
from kvreg.sweep.plan import Plan, load_plan


@dataclass(frozen=True)
class Status:
    """`states` counts the results; seconds are wall-clock; `other_s` is neither start-up,
    warm-up, measurement nor stopping, per cell that had a server."""

    plan: str
    label: str | None
    cells: int
    done: int
    states: dict[str, int]
    broken_attempts: int
    sessions: int
    cell_s: float
    left_s: float
    mean_other_s: float | None
    max_other_s: float | None
    last: dict[str, Any] | None
    gates: tuple[dict[str, Any], ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready data."""
        return asdict(self)


def status_of(folder: Path) -> Status:
    """The status of a sweep directory."""
    return status(load_plan(folder), read_ledger(folder))


def status(plan: Plan, ledger: Ledger) -> Status:
    """The status that a ledger says, held against its plan."""
    cells = plan.cells()
    results = [ledger.results[cell.id] for cell in cells if cell.id in ledger.results]
    counts = Counter(result.state for result in results)
    served = [result.timing["other_s"] for result in results if result.timing.get("start_s")]
    seconds = seconds_per_cell(plan, results)
    last = max(results, key=lambda result: result.time, default=None)
    return Status(
        plan=plan.digest,
        label=plan.label,
        cells=len(cells),
        done=len(results),
        states={state: counts[state] for state in STATES if counts[state]},
        broken_attempts=sum(ledger.broken.values()),
        sessions=len({event["session"] for event in ledger.events}),
        cell_s=seconds,
        left_s=seconds * (len(cells) - len(results)),
        mean_other_s=sum(served) / len(served) if served else None,
        max_other_s=max(served, default=None),
        last=describe(last) if last else None,
        gates=tuple(
            {key: event.get(key) for key in ("model", "tp", "workloads", "state", "reason")}
            for event in ledger.gates.values()
        ),
    )


def seconds_per_cell(plan: Plan, results: Sequence[Result]) -> float:
    """What a cell takes: the mean of those that had a server, else what the plan expects."""
    seen = [sum(result.timing.values()) for result in results if result.timing.get("start_s")]
    return sum(seen) / len(seen) if seen else plan.expected.cell_s


def pending(cells: Sequence[Cell], ledger: Ledger, again: Sequence[str] = ()) -> list[Cell]:
    """The cells without a result, or with one in a state of `again`."""
    return [
        cell
        for cell in cells
        if (result := ledger.results.get(cell.id)) is None or result.state in again
    ]


def describe(result: Result) -> dict[str, Any]:
    """A result in short."""
    return {
        "cell": result.cell,
        "state": result.state,
        "reason": result.reason,
        "output_tokens_per_s": result.metrics.get("output_tokens_per_s"),
        "max_gpu_memory_mib": result.metrics.get("max_gpu_memory_mib"),
    }


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(97261), duration(75.2), duration(3)
    ('27 h 1 min', '1 min 15 s', '3 s')
    """
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, last = divmod(rest, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {last} s" if minutes else f"{last} s"
