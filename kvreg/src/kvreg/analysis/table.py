"""The cell table: one row is one fresh server, and nothing else is a replication.

A table comes from a CSV file (`read_cells`) or from a sweep directory (`rows_of`). Whatever cannot
be what it says is refused with every fault named: duplicate cells, requests dressed up as
repetitions, measured cells without a value, gated cells with one.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from kvreg.analysis.metrics import METRICS, PRIMARY
from kvreg.errors import ContractError, NotFoundError, Problem, VerificationError

MEASURED, GATED = "MEASURED", "RESOURCE_GATED"
INCOMPATIBLE, FAILED = "INCOMPATIBLE", "FAILED"
STATES = (MEASURED, GATED, INCOMPATIBLE, FAILED)

REQUEST_COLUMNS = frozenset(
    {"request", "request_id", "request_index", "request_no", "req_id", "prompt_id", "prompt_index"}
)
"""Extra columns that only a table of requests has. One row of ours is a whole server run."""

SERVER_COLUMNS = frozenset({"server_id", "server_run", "server_start"})
"""Extra columns that identify the server process: no two rows may share a value."""

_NO_REQUESTS = (
    "one row per fresh server: aggregate the requests of a server first; they are not replications"
)


@dataclass(frozen=True)
class CellRow:
    """One cell: what was asked for, how it ended, and what was measured (None where nothing was).

    Throughputs in 1/s, latencies (means over the cell's requests) in ms, memory in MiB per GPU.
    `input_tokens` is None where prompts were texts. `reason` says why a cell was not measured.
    """

    model: str
    workload: str
    input_tokens: int | None
    output_tokens: int
    concurrency: int
    tp: int
    repetition: int
    state: str
    output_tokens_per_s: float | None = None
    requests_per_s: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None
    max_gpu_memory_mib: float | None = None
    reason: str | None = None

    @property
    def key(self) -> tuple[str, str, int, int, int]:
        """What makes the cell unique: model, workload, concurrency, tp, repetition."""
        return (self.model, self.workload, self.concurrency, self.tp, self.repetition)

    def value(self, metric: str) -> float | None:
        """The measured value of `metric`, or None."""
        number: float | None = getattr(self, metric)
        return number

    def __str__(self) -> str:
        return (
            f"{self.model} {self.workload} C={self.concurrency} TP={self.tp} "
            f"repetition {self.repetition}"
        )


COLUMNS = tuple(field.name for field in fields(CellRow) if field.name != "reason")
"""The columns of a bare cell table, in the order in which they are written."""

_TEXT = ("model", "workload", "state")
_COUNTS = ("input_tokens", "output_tokens", "concurrency", "tp", "repetition")
_NUMBERS = (*METRICS, "max_gpu_memory_mib")


@dataclass(frozen=True)
class CellTable:
    """Checked rows and where they come from (`identity`, see `Analysis.to_dict`).

    `label` is set where the rows are no paired comparison of fresh servers, and says what they
    are. `gates` are the compatibility gates: model, tp, state, reason.
    """

    rows: tuple[CellRow, ...]
    identity: Mapping[str, Any]
    label: str | None = None
    gates: tuple[Mapping[str, Any], ...] = ()

    def __iter__(self) -> Iterator[CellRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def read_cells(path: Path) -> CellTable:
    """Read and check a bare cell table (CSV, any column order, extra columns ignored).

    Raises `NotFoundError` without the file, `ContractError` naming every fault of its content.
    """
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise NotFoundError(
            f"there is no cell table at {path}", remedy="name a CSV file, see --help"
        ) from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ContractError(f"{path} is not UTF-8 text", found=str(error)) from error
    rows = _parse(text, str(path))
    check_rows(rows, str(path))
    return CellTable(rows, {"source": "cells", "cells": f"sha256:{sha256(raw).hexdigest()}"})


def _parse(text: str, name: str) -> tuple[CellRow, ...]:
    # newline="" semantics: the csv module itself knows \r\n and quoted line breaks
    reader = csv.reader(io.StringIO(text, newline=""))
    header = [column.strip() for column in next(reader, [])]
    _check_header(header, name)
    rows, problems = [], []
    servers: dict[tuple[str, str], int] = {}
    for cells in reader:
        if not any(cell.strip() for cell in cells):
            continue
        where = f"line {reader.line_num}"
        if len(cells) != len(header):
            problems.append(
                Problem(where, "has the wrong number of fields", str(len(header)), str(len(cells)))
            )
            continue
        record = dict(zip(header, (cell.strip() for cell in cells), strict=True))
        try:
            rows.append(_row(record))
        except ValueError as error:
            problems.append(Problem(where, str(error)))
        problems += _pretences(record, where, servers)
    if problems:
        raise ContractError(f"{name} is not a cell table", problems=problems)
    return tuple(rows)


def _check_header(header: Sequence[str], name: str) -> None:
    missing = [column for column in COLUMNS if column not in header]
    twice = sorted({column for column in header if column in COLUMNS and header.count(column) > 1})
    if missing or twice:
        raise ContractError(
            f"{name} is not a cell table",
            expected=",".join(COLUMNS),
            found=f"missing columns {', '.join(missing)}" if missing else f"twice: {twice}",
            remedy="name the columns exactly; leave unmeasured values empty",
        )


def _row(record: Mapping[str, str]) -> CellRow:
    values: dict[str, Any] = {name: record[name] for name in _TEXT}
    for name in ("model", "workload"):
        if not values[name]:
            raise ValueError(f"{name} is empty")
    for name in _COUNTS:
        values[name] = _count(name, record[name])
    for name in _NUMBERS:
        values[name] = _number(name, record[name])
    return CellRow(**values, reason=record.get("reason") or None)


def _count(name: str, text: str) -> int:
    try:
        number = float(text)
        if number.is_integer():  # spreadsheets write 16 as 16.0
            return int(number)
    except ValueError:
        pass
    raise ValueError(f"{name} is not a whole number: {text!r}")


def _number(name: str, text: str) -> float | None:
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} is not a number: {text!r}") from None


def _pretences(
    record: Mapping[str, str], where: str, servers: dict[tuple[str, str], int]
) -> Iterator[Problem]:
    """Rows that are requests, or that share one server."""
    for column, text in record.items():
        if not text:
            continue
        if column.lower() in REQUEST_COLUMNS:
            yield Problem(where, f"is a request ({column} {text})", _NO_REQUESTS)
        elif column.lower() in SERVER_COLUMNS:
            if (column, text) in servers:
                yield Problem(
                    where,
                    f"shares {column} {text} with row {servers[column, text]}",
                    "a fresh server for every cell",
                )
            servers.setdefault((column, text), len(servers) + 1)


def rows_of(directory: Path) -> CellTable:
    """Read and check the cells of a sweep directory: its plan joined with its ledger.

    Cells without a result are no rows; their number is ``pending`` in the identity. Raises
    `NotFoundError` without a plan, `ContractError` or `VerificationError` for damaged files.
    """
    from kvreg.sweep.ledger import LEDGER_FILE, read_ledger
    from kvreg.sweep.plan import load_plan

    plan = load_plan(directory)
    ledger = read_ledger(directory)
    cells = plan.cells()
    rows = [_joined(cell, ledger.results[cell.id]) for cell in cells if cell.id in ledger.results]
    if not rows:
        raise ContractError(
            f"no cell of the sweep in {directory} has a result yet",
            expected=f"{len(cells)} cells",
            remedy="kvreg sweep run, see: kvreg sweep run --help",
        )
    check_rows(rows, f"the sweep in {directory}")
    identity = {
        **_recorded_identity(directory, plan.digest),
        "source": "sweep",
        "plan": plan.digest,
        "name": plan.name,
        "ledger": _digest_of(directory / LEDGER_FILE),
        "pending": len(cells) - len(rows),
        "memory_boundary_mib": plan.limits.memory_boundary_mib,
    }
    gates = tuple(
        {name: gate.get(name) for name in ("model", "tp", "state", "reason")}
        for _, gate in sorted(ledger.gates.items())
    )
    return CellTable(tuple(rows), identity, plan.label, gates)


def read_evidence(path: Path) -> CellTable:
    """`rows_of` a directory, `read_cells` of a file."""
    return rows_of(path) if path.is_dir() else read_cells(path)


def _joined(cell: Any, result: Any) -> CellRow:
    """A cell of a plan with its result. Only a measured cell has performance; memory all may."""
    kept = (*METRICS, "max_gpu_memory_mib") if result.state == MEASURED else ("max_gpu_memory_mib",)
    values = {name: result.metrics.get(name) for name in kept}
    return CellRow(
        model=cell.model,
        workload=cell.workload,
        input_tokens=cell.input_tokens,
        output_tokens=cell.output_tokens,
        concurrency=cell.concurrency,
        tp=cell.tp,
        repetition=cell.repetition,
        state=result.state,
        reason=result.reason,
        **{name: None if value is None else float(value) for name, value in values.items()},
    )


def _recorded_identity(directory: Path, plan: str) -> dict[str, Any]:
    """``identity.json``, checked to be of this plan; unknown identities are null, not guessed."""
    path = directory / "identity.json"
    names = ("artifact", "profile", "facts", "engine", "kvreg", "created")
    try:
        recorded = json.loads(path.read_bytes())
    except FileNotFoundError:
        return dict.fromkeys(names)
    except ValueError as error:
        raise ContractError(f"{path} is not JSON", found=str(error)) from None
    if recorded.get("plan") != plan:
        raise VerificationError(
            f"{directory} was measured under another plan",
            expected=str(recorded.get("plan")),
            found=plan,
            remedy="restore the plan.toml that the sweep was run with",
        )
    return {name: recorded.get(name) for name in names}


def _digest_of(path: Path) -> str:
    return f"sha256:{sha256(path.read_bytes()).hexdigest()}"


def cells_csv(rows: Iterable[CellRow]) -> str:
    """Rows as a bare cell table that `read_cells` reads back, in canonical order."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in sorted(rows, key=lambda row: row.key):
        values = (getattr(row, name) for name in COLUMNS)
        writer.writerow(["" if value is None else value for value in values])
    return out.getvalue()


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
    for name in _COUNTS:
        # repetition and input counts from 0 or 1: both habits exist
        least = 0 if name in ("repetition", "input_tokens") else 1
        if name == "input_tokens" and row.input_tokens is None:
            continue
        if getattr(row, name) < least:
            yield Problem(where, f"{name} is too small", f">={least}", str(getattr(row, name)))
    for name in _NUMBERS:
        value = row.value(name)
        if value is not None and not (math.isfinite(value) and value >= 0):
            yield Problem(where, f"{name} is no measurement", "a finite number >= 0", repr(value))
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
            yield Problem(str(row), "is there more than once", _NO_REQUESTS, str(counts[row.key]))


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
