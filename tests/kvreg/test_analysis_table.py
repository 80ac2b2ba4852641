"""Reading cell tables: what is accepted, and what is refused with every fault named."""

import contextlib
import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg.analysis.table import (
    COLUMNS,
    CellRow,
    cells_csv,
    check_rows,
    parse_cells,
    read_cells,
)
from kvreg.errors import ContractError, NotFoundError
from tests.support.studies import cell, m4_rows, study

GOOD = {
    "model": "m",
    "workload": "short",
    "input_tokens": "128",
    "output_tokens": "64",
    "concurrency": "1",
    "tp": "1",
    "repetition": "1",
    "state": "MEASURED",
    "output_tokens_per_s": "10.5",
}


def write(path: Path, *rows: dict[str, str], columns: tuple[str, ...] = COLUMNS) -> Path:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, restval="")
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(out.getvalue().encode())
    return path


def refused(path: Path) -> str:
    with pytest.raises(ContractError) as caught:
        read_cells(path)
    assert caught.value.exit_code == 1
    return str(caught.value)


def test_table_comes_back_as_written(tmp_path: Path) -> None:
    rows = m4_rows()
    path = tmp_path / "cells.csv"
    path.write_text(cells_csv(rows))
    read = read_cells(path)
    assert sorted(read.rows, key=lambda row: row.key) == sorted(rows, key=lambda row: row.key)
    assert set(read.identity) == {"source", "cells"}


def test_unmeasured_is_empty_and_stays_none(tmp_path: Path) -> None:
    (row,) = read_cells(write(tmp_path / "cells.csv", GOOD)).rows
    assert row.output_tokens_per_s == 10.5
    assert row.ttft_ms is None and row.max_gpu_memory_mib is None


def test_column_order_extra_columns_bom_and_blank_lines_do_not_matter(tmp_path: Path) -> None:
    columns = ("note", *reversed(COLUMNS), "seed")
    path = write(tmp_path / "cells.csv", {**GOOD, "note": "a, b", "seed": "3"}, columns=columns)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\n\n"))
    assert read_cells(path).rows == read_cells(write(tmp_path / "plain.csv", GOOD)).rows


def test_counts_that_a_spreadsheet_wrote(tmp_path: Path) -> None:
    (row,) = read_cells(write(tmp_path / "cells.csv", {**GOOD, "concurrency": "16.0"})).rows
    assert row.concurrency == 16 and isinstance(row.concurrency, int)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"output_tokens_per_s": ""}, "MEASURED without output_tokens_per_s"),
        ({"output_tokens_per_s": "nan"}, "output_tokens_per_s is no measurement"),
        ({"output_tokens_per_s": "inf"}, "output_tokens_per_s is no measurement"),
        ({"ttft_ms": "-1"}, "ttft_ms is no measurement"),
        ({"ttft_ms": "1e300"}, "ttft_ms is no measurement"),
        ({"output_tokens_per_s": "0"}, "output_tokens_per_s is zero"),
        ({"output_tokens_per_s": "fast"}, "output_tokens_per_s is not a number: 'fast'"),
        ({"state": "RESOURCE_GATED"}, "is RESOURCE_GATED with a value"),
        ({"state": "FAILED"}, "is FAILED with a value"),
        ({"state": "measured"}, "state is unknown"),
        ({"state": ""}, "state is unknown"),
        ({"concurrency": "1.5"}, "concurrency is not a whole number: '1.5'"),
        ({"concurrency": ""}, "concurrency is not a whole number"),
        ({"concurrency": "0"}, "concurrency is too small"),
        ({"tp": "nan"}, "tp is not a whole number"),
        ({"tp": "inf"}, "tp is not a whole number"),
        ({"tp": "0"}, "tp is too small"),
        ({"model": " "}, "model is empty"),
    ],
)
def test_impossible_cells_are_refused(tmp_path: Path, change: dict[str, str], says: str) -> None:
    assert says in refused(write(tmp_path / "cells.csv", {**GOOD, **change}))


def test_gated_with_memory_alone_is_what_a_gated_cell_is(tmp_path: Path) -> None:
    gated = {**GOOD, "state": "RESOURCE_GATED", "output_tokens_per_s": ""}
    (row,) = read_cells(write(tmp_path / "a.csv", {**gated, "max_gpu_memory_mib": "14895"})).rows
    assert row.max_gpu_memory_mib == 14895


def test_duplicates_are_refused_and_named_once(tmp_path: Path) -> None:
    text = refused(write(tmp_path / "cells.csv", *[GOOD] * 200))
    assert "m short C=1 TP=1 repetition 1: is there more than once" in text
    assert "found 200" in text and "not replications" in text
    assert text.count("more than once") == 1


@pytest.mark.parametrize("column", ["request", "request_id", "Request_ID", "prompt_id"])
def test_requests_dressed_up_as_repetitions_are_refused(tmp_path: Path, column: str) -> None:
    """Every request has a repetition number of its own: the keys are unique, and still no."""
    rows = [{**GOOD, "repetition": str(n), column: f"r{n}"} for n in range(1, 40)]
    text = refused(write(tmp_path / "cells.csv", *rows, columns=(*COLUMNS, column)))
    assert "is a request" in text and "not replications" in text


def test_repetitions_of_one_server_are_refused(tmp_path: Path) -> None:
    rows = [{**GOOD, "repetition": str(n), "server_id": "4711"} for n in (1, 2)]
    text = refused(write(tmp_path / "cells.csv", *rows, columns=(*COLUMNS, "server_id")))
    assert "shares server_id 4711 with line 2" in text


def test_two_shapes_of_one_workload_are_refused(tmp_path: Path) -> None:
    other = {**GOOD, "repetition": "2", "input_tokens": "512"}
    assert "has more than one token shape" in refused(write(tmp_path / "cells.csv", GOOD, other))


def test_all_faults_are_named_at_once(tmp_path: Path) -> None:
    rows = [{**GOOD, "state": "DONE"}, {**GOOD, "repetition": "2", "ttft_ms": "-3"}, GOOD]
    text = refused(write(tmp_path / "cells.csv", *rows))
    assert "state is unknown" in text and "ttft_ms" in text and "more than once" in text


@pytest.mark.parametrize("missing", ["state", "itl_ms", "tp"])
def test_missing_columns_are_named(tmp_path: Path, missing: str) -> None:
    columns = tuple(name for name in COLUMNS if name != missing)
    row = {name: value for name, value in GOOD.items() if name != missing}
    assert f"missing columns {missing}" in refused(
        write(tmp_path / "cells.csv", row, columns=columns)
    )


def test_a_column_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    path.write_text(",".join((*COLUMNS, "tp")) + "\n")
    assert "twice" in refused(path)


def test_ragged_lines_empty_tables_and_other_encodings(tmp_path: Path) -> None:
    path = write(tmp_path / "cells.csv", GOOD)
    path.write_text(path.read_text() + "m,short\n")
    assert "wrong number of fields" in refused(path)
    assert "has no rows" in refused(write(tmp_path / "empty.csv"))
    (tmp_path / "nothing.csv").write_bytes(b"")
    assert "missing columns" in refused(tmp_path / "nothing.csv")
    (tmp_path / "utf16.csv").write_bytes("model".encode("utf-16"))
    assert "not UTF-8" in refused(tmp_path / "utf16.csv")


def test_no_table(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read_cells(tmp_path / "cells.csv")


cells_of_rows = st.builds(
    cell,
    model=st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8),
    workload=st.just("w"),
    concurrency=st.integers(1, 10**6),
    tp=st.integers(1, 64),
    repetition=st.integers(0, 99),
    rate=st.one_of(st.none(), st.floats(1e-3, 1e9)),
    memory=st.one_of(st.none(), st.floats(0, 1e6)),
)


@given(st.lists(cells_of_rows, min_size=1, max_size=8, unique_by=lambda row: row.key))
def test_any_rows_come_back_bit_by_bit(rows: list[CellRow]) -> None:
    read = parse_cells(cells_csv(rows).encode(), "cells.csv").rows
    assert read == tuple(sorted(rows, key=lambda row: row.key))


header = ",".join(COLUMNS)


@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(max_size=200).map(str.encode),
        st.lists(st.text('01.,"\r\n -naeMDE\0', max_size=60), max_size=5).map(
            lambda lines: "\n".join([header, *lines]).encode()
        ),
    )
)
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    with contextlib.suppress(ContractError):
        parse_cells(raw, "cells.csv")


def test_rows_from_anywhere_are_checked_alike() -> None:
    check_rows(study({1: {1: [1.0, 2.0], 2: [1.0, 2.0]}}))
    with pytest.raises(ContractError, match="cannot be analysed"):
        check_rows([cell(), cell()])
