"""The ledger: append-only, torn lines, attempts, results."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg.errors import VerificationError
from kvreg.sweep.ledger import LedgerWriter, read_ledger


def finished(writer, cell, attempt, state="MEASURED", **fields):
    writer.append("started", cell=cell, attempt=attempt)
    writer.append("finished", cell=cell, attempt=attempt, state=state, **fields)


def test_the_last_finished_attempt_is_the_result(tmp_path):
    writer = LedgerWriter(tmp_path / "ledger.jsonl", "s1")
    finished(writer, "a", 1, "FAILED", reason="it crashed")
    finished(writer, "a", 2, metrics={"ttft_ms": 1.5}, timing={"start_s": 2})
    writer.append("started", cell="b", attempt=1)
    found = read_ledger(tmp_path)
    assert found.results["a"].state == "MEASURED"
    assert found.results["a"].metrics == {"ttft_ms": 1.5}
    assert found.results["a"].timing == {"start_s": 2}
    assert found.results["a"].attempt == 2 and found.results["a"].session == "s1"
    assert "b" not in found.results
    assert found.broken == {"b": 1}
    assert found.attempts == {"a": 2, "b": 1}
    assert writer.read() == found


def test_a_missing_ledger_is_empty(tmp_path):
    assert read_ledger(tmp_path).results == {}


@given(st.data())
def test_a_ledger_cut_anywhere_is_read_and_goes_on(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    writer = LedgerWriter(path, "s1")
    for number in range(3):
        finished(writer, f"cell {number} ü", 1, reason=None)
    writer.close()
    raw = path.read_bytes()
    cut = data.draw(st.integers(0, len(raw)))
    path.write_bytes(raw[:cut])
    before = read_ledger(path)
    whole = raw[:cut].count(b"\n")
    assert len(before.events) == whole
    assert before.torn == (not raw[:cut].endswith(b"\n") and cut > 0)
    writer = LedgerWriter(path, "s2")
    finished(writer, "later", 1)
    writer.close()
    after = read_ledger(path)
    assert not after.torn
    assert after.events[:whole] == before.events
    assert set(after.results) == {*before.results, "later"}
    assert path.read_bytes().startswith(raw[:cut].rpartition(b"\n")[0])


@pytest.mark.parametrize(
    "line",
    [
        "rubbish",
        "[]",
        '{"schema":2,"event":"gate"}',
        '{"schema":1}',
        '{"schema":1,"event":"finished","cell":"a","attempt":1,"state":"ZERO"}',
        '{"schema":1,"event":"started"}',
    ],
)
def test_a_damaged_line_in_the_middle_is_refused(tmp_path, line):
    path = tmp_path / "ledger.jsonl"
    path.write_text(line + "\n" + json.dumps({"schema": 1, "event": "note"}) + "\n")
    with pytest.raises(VerificationError, match="line 1"):
        read_ledger(path)


def test_events_of_other_names_are_kept(tmp_path):
    writer = LedgerWriter(tmp_path / "ledger.jsonl", "s1")
    writer.append("note", text="hello")
    (event,) = read_ledger(tmp_path).events
    assert event["text"] == "hello" and event["time"].endswith("Z")
