"""The cell table: one row is one fresh server, and nothing else is a replication.

A table comes from a CSV file (`read_cells`) or from a sweep directory (`rows_of`). Whatever cannot
be what it says is refused with every fault named: duplicate cells, requests dressed up as
repetitions, measured cells without a value, gated cells with one.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from kvreg.analysis.checks import NO_REQUESTS, check_rows
from kvreg.analysis.metrics import METRICS
from kvreg.analysis.rows import (
    COLUMNS,
    COUNTS,
    FAILED,
    GATED,
    INCOMPATIBLE,
    MEASURED,
    NUMBERS,
    STATES,
    CellRow,
    CellTable,
)
from kvreg.errors import ContractError, NotFoundError, Problem, VerificationError

__all__ = [
    "COLUMNS",
    "FAILED",
    "GATED",
    "INCOMPATIBLE",
    "MEASURED",
    "STATES",
    "CellRow",
    "CellTable",
    "cells_csv",
    "check_rows",
    "parse_cells",
    "read_cells",
    "read_evidence",
    "rows_of",
]

REQUEST_COLUMNS = frozenset(
    {"request", "request_id", "request_index", "request_no", "req_id", "prompt_id", "prompt_index"}
)
"""Extra columns that only a table of requests has. One row of ours is a whole server run."""

SERVER_COLUMNS = frozenset({"server_id", "server_run", "server_start"})
"""Extra columns that identify the server process: no two rows may share a value."""


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
    return parse_cells(raw, str(path))


def parse_cells(raw: bytes, name: str) -> CellTable:
    """The table that the bytes of a CSV file hold; `name` names them in messages.

    Raises `ContractError` naming every fault.
    """
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ContractError(f"{name} is not UTF-8 text", found=str(error)) from error
    rows = _parse(text, name)
    check_rows(rows, name)
    digest = f"sha256:{sha256(raw).hexdigest()}"
    return CellTable(rows, {"source": "cells", "cells": digest})


def _parse(text: str, name: str) -> tuple[CellRow, ...]:
    # newline="" semantics: the csv module itself knows \r\n and quoted line breaks
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [column.strip() for column in next(reader, [])]
        _check_header(header, name)
        return _records(reader, header, name)
    except csv.Error as error:
        raise ContractError(
            f"{name} is not CSV", found=f"line {reader.line_num}: {error}"
        ) from None


def _records(reader: Any, header: Sequence[str], name: str) -> tuple[CellRow, ...]:
    rows, problems = [], []
    servers: dict[tuple[str, str], str] = {}
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
    values: dict[str, Any] = {name: record[name] for name in ("model", "workload", "state")}
    for name in ("model", "workload"):
        if not values[name]:
            raise ValueError(f"{name} is empty")
    for name in COUNTS:
        values[name] = _count(name, record[name])
    for name in NUMBERS:
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
    record: Mapping[str, str], where: str, servers: dict[tuple[str, str], str]
) -> Iterator[Problem]:
    """Rows that are requests, or that share one server."""
    for column, text in record.items():
        if not text:
            continue
        if column.lower() in REQUEST_COLUMNS:
            yield Problem(where, f"is a request ({column} {text})", NO_REQUESTS)
        elif column.lower() in SERVER_COLUMNS:
            if (column, text) in servers:
                yield Problem(
                    where,
                    f"shares {column} {text} with {servers[column, text]}",
                    "a fresh server for every cell",
                )
            servers.setdefault((column, text), where)


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
    pending = Counter(
        (cell.model, cell.workload) for cell in cells if cell.id not in ledger.results
    )
    return CellTable(tuple(rows), identity, plan.label, gates, pending)


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
