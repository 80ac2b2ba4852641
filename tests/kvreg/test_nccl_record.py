"""The design of a measurement and the file that it is kept in."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg.errors import ContractError, NotFoundError, UsageError, VerificationError
from kvreg.nccl.design import Design, human_size, parse_payloads
from kvreg.nccl.record import Record, Repetition, open_record, read_record
from tests.support.communication import ENVIRONMENT, simulate

SMALL = Design(payloads=(1024, 4096), repetitions=3, collectives=4)


def repetition(index, environment=ENVIRONMENT):
    samples = [{"bytes": 1024, "timer": "host", "calls": 1, "us": [1.5, 2.0, 3.25, 4.0]}]
    return Repetition(index, environment, samples, {"graph": "none here"}, 0.5)


@given(st.lists(st.integers(1, 2**40), min_size=1, max_size=8))
def test_sizes_are_read_as_they_are_written(sizes):
    assert parse_payloads(",".join(human_size(size) for size in sizes)) == tuple(sizes)


@pytest.mark.parametrize("text", ["", "1KB", "-4", "0", "1.5", "1KiB,,2KiB", "many"])
def test_other_sizes_are_refused(text):
    with pytest.raises(UsageError, match="not a payload size"):
        parse_payloads(text)


@pytest.mark.parametrize(
    "fields",
    [
        {"backend": "mpi"},
        {"ranks": 1},
        {"dtype": "int3"},
        {"payloads": ()},
        {"payloads": (1022,)},
        {"payloads": (1024, 1024)},
        {"repetitions": 0},
        {"collectives": 0},
    ],
)
def test_designs_that_mean_nothing_are_refused(fields):
    with pytest.raises(UsageError):
        Design(**fields)


def test_the_digest_is_of_everything_in_the_design():
    others = [
        Design(ranks=4),
        Design(seed=1),
        Design(peer=False),
        Design(backend="gloo"),
        Design(payloads=(1024,)),
    ]
    assert len({design.digest for design in (Design(), *others)}) == 6
    assert Design.from_dict(json.loads(json.dumps(Design().to_dict()))) == Design()


def test_every_repetition_has_an_order_of_its_own():
    design = Design()
    orders = [design.order(index) for index in range(5)]
    assert all(sorted(order) == sorted(design.payloads) for order in orders)
    assert len({tuple(order) for order in orders}) == 5
    assert orders == [Design().order(index) for index in range(5)]


def test_a_file_is_gone_on_with(tmp_path):
    path = tmp_path / "new" / "nccl.jsonl"
    with open_record(path, SMALL) as record:
        record.add(repetition(0))
        record.add(repetition(2))
    with open_record(path, SMALL) as record:
        assert record.missing() == [1]
        record.add(repetition(1))
    again = read_record(path)
    assert again.missing() == [] and again.repetitions[1] == repetition(1)
    assert again.environment == ENVIRONMENT and not again.simulated


@pytest.mark.parametrize("kept", range(1, 400, 57))
def test_a_torn_line_is_cut_off_by_the_next_session(tmp_path, kept):
    path = tmp_path / "nccl.jsonl"
    with open_record(path, SMALL) as record:
        record.add(repetition(0))
        whole = path.stat().st_size
        record.add(repetition(1))
    with path.open("r+b") as stream:
        stream.truncate(whole + kept)
    assert read_record(path).missing() == [1, 2]
    with open_record(path, SMALL) as record:
        assert path.stat().st_size == whole
        record.add(repetition(1))
    assert read_record(path).missing() == [2]


def test_a_file_torn_in_its_first_line_begins_anew(tmp_path):
    path = tmp_path / "nccl.jsonl"
    path.write_bytes(b'{"event":"desi')
    with pytest.raises(VerificationError):
        read_record(path)
    with open_record(path, SMALL) as record:
        assert record.missing() == [0, 1, 2]


def test_another_design_is_refused(tmp_path):
    path = tmp_path / "nccl.jsonl"
    with open_record(path, SMALL):
        pass
    with pytest.raises(ContractError, match="another design"), open_record(path, Design()):
        pass


def test_another_environment_is_refused_and_named(tmp_path):
    path = tmp_path / "nccl.jsonl"
    with open_record(path, SMALL) as record:
        record.add(repetition(0))
        record.check_environment(ENVIRONMENT)
        with pytest.raises(ContractError) as caught:
            record.check_environment({**ENVIRONMENT, "nccl": "2.28.0"})
    assert (caught.value.expected, caught.value.found) == ("nccl 2.27.5", "nccl 2.28.0")


def test_two_sessions_do_not_write_one_file(tmp_path):
    path = tmp_path / "nccl.jsonl"
    with (
        open_record(path, SMALL),
        pytest.raises(UsageError, match="another session"),
        open_record(path, SMALL),
    ):
        pass


def test_no_file(tmp_path):
    with pytest.raises(NotFoundError):
        read_record(tmp_path / "none.jsonl")


def test_a_changed_design_is_noticed(tmp_path):
    record = simulate(tmp_path / "nccl.jsonl", 10, 1, design=SMALL)
    text = record.path.read_text().replace('"collectives":4', '"collectives":400', 1)
    record.path.write_text(text)
    with pytest.raises(VerificationError, match="not a communication measurement"):
        read_record(record.path)


@given(st.binary(max_size=200))
def test_other_files_are_told_apart(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("other") / "file"
    path.write_bytes(data)
    with pytest.raises(VerificationError):
        read_record(path)


@pytest.mark.parametrize("us", ["[0]", "[-1.5]", '["3"]', "[null]"])
def test_impossible_times_are_refused(tmp_path, us):
    path = tmp_path / "nccl.jsonl"
    record = Record(path, SMALL)
    record.begin()
    record.add(repetition(0))
    path.write_text(path.read_text().replace("[1.5,2,3.25,4]", us))
    with pytest.raises(VerificationError):
        read_record(path)
