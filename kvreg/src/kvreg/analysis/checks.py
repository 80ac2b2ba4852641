"""What rows cannot be: every fault is named, all at once."""

from collections.abc import Iterable, Iterator, Sequence

from kvreg.analysis.metrics import METRICS, PRIMARY
from kvreg.analysis.rows import COUNTS, MEASURED, NUMBERS, STATES, CellRow
from kvreg.errors import ContractError, Problem

LARGEST = 1e15
"""No rate, latency or memory is larger; sums of squares stay far from overflow."""

NO_REQUESTS = (
    "one row per fresh server: aggregate the requests of a server first; they are not replications"
)


def check_rows(rows: Iterable[CellRow], name: str = "the cell table") -> None:
    """Refuse rows that cannot be what they say; all faults are named at once.

    Raises `ContractError`.
    """
    rows = tuple(rows)
    if not rows:
        raise ContractError(f"{name} has no rows", expected="one row per cell")
    problems = [problem for row in rows for problem in _row_problems(row)]
    problems += _duplicates(rows)
    problems += _shapes(rows)
    if problems:
        raise ContractError(f"{name} cannot be analysed", problems=problems)


def _row_problems(row: CellRow) -> Iterator[Problem]:
    where = str(row)
    for name in COUNTS:
        # repetition and input counts from 0 or 1: both habits exist
        least = 0 if name in ("repetition", "input_tokens") else 1
        if name == "input_tokens" and row.input_tokens is None:
            continue
        if getattr(row, name) < least:
            yield Problem(where, f"{name} is too small", f">={least}", str(getattr(row, name)))
    for name in NUMBERS:
        value = row.value(name)
        if value is not None and not 0 <= value <= LARGEST:  # NaN is neither
            yield Problem(
                where, f"{name} is no measurement", f"a number from 0 to {LARGEST:g}", repr(value)
            )
    if row.state not in STATES:
        yield Problem(where, "state is unknown", ", ".join(STATES), row.state or "nothing")
    elif row.state == MEASURED:
        if row.value(PRIMARY) is None:
            yield Problem(where, f"is MEASURED without {PRIMARY}", "a value, or another state")
        for name in ("output_tokens_per_s", "requests_per_s"):
            if row.value(name) == 0:
                yield Problem(
                    where, f"{name} is zero", "a rate above zero, or RESOURCE_GATED or FAILED"
                )
    else:
        for name in METRICS:
            if row.value(name) is not None:
                yield Problem(
                    where, f"is {row.state} with a value", f"no {name}", repr(row.value(name))
                )


def _duplicates(rows: Sequence[CellRow]) -> Iterator[Problem]:
    counts: dict[tuple[str, str, int, int, int], int] = {}
    for row in rows:
        counts[row.key] = counts.get(row.key, 0) + 1
    seen = set()
    for row in rows:
        if counts[row.key] > 1 and row.key not in seen:
            seen.add(row.key)
            yield Problem(str(row), "is there more than once", NO_REQUESTS, str(counts[row.key]))


def _shapes(rows: Sequence[CellRow]) -> Iterator[Problem]:
    shapes: dict[str, set[tuple[int | None, int]]] = {}
    for row in rows:
        shapes.setdefault(row.workload, set()).add((row.input_tokens, row.output_tokens))
    for workload, found in sorted(shapes.items()):
        if len(found) > 1:
            yield Problem(
                f"workload {workload}",
                "has more than one token shape",
                "one pair of input and output tokens; give each shape a name of its own",
                ", ".join(sorted(f"{a}+{b}" for a, b in found)),
            )
