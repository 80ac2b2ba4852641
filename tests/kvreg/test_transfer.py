"""Ranges, the journal, and blobs that come over several connections."""

import os
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg.blobs import BlobStore
from kvreg.errors import VerificationError
from kvreg.model.oci import Descriptor
from kvreg.reference import parse_reference
from kvreg.sources import open_source
from kvreg.transfer.blob import Arrivals, Blob
from kvreg.transfer.journal import Journal, crc32, discard, journal_path, recover
from kvreg.transfer.ranges import RangeSet
from kvreg.transfer.schedule import RangePolicy, Schedule
from tests.kvreg.pulls import TINY, members
from tests.support import faults

spans = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted).map(tuple)


@given(st.lists(st.tuples(st.booleans(), spans), max_size=20), spans)
def test_ranges_are_what_a_set_of_positions_is(steps, asked):
    found, expected = RangeSet(), set()
    for adds, (start, end) in steps:
        span = set(range(start, end))
        if adds:
            assert found.add(start, end) == len(span - expected)
            expected |= span
        else:
            assert found.remove(start, end) == len(span & expected)
            expected -= span
    assert {x for start, end in found for x in range(start, end)} == expected
    assert found.size == len(expected)
    ranges = list(found)
    assert all(a < b for a, b in ranges)
    assert all(one[1] < two[0] for one, two in pairwise(ranges))
    start, end = asked
    missing = [x for low, high in found.missing(start, end) for x in range(low, high)]
    assert missing == [x for x in range(start, end) if x not in expected]
    assert found.contains(start, end) == (not missing)
    run = found.run_end(start)
    assert run == next(x for x in range(start, 99) if x not in expected)


@pytest.fixture
def partial(tmp_path):
    """A partial blob of 1000 bytes, and its descriptor."""
    content = os.urandom(1000)
    path = tmp_path / "blob.partial"
    path.write_bytes(content)
    return path, Descriptor.of_bytes("x/y", content), content


def test_the_journal_tells_what_arrived(partial):
    path, descriptor, content = partial
    assert not recover(path, descriptor)
    journal = Journal(path)
    for start, end in ((0, 100), (100, 300), (500, 900)):
        journal.add(start, end, crc32(content[start:end]))
    assert list(recover(path, descriptor)) == [(0, 300), (500, 900)]
    # It was written again; what is added comes after.
    journal = Journal(path)
    journal.add(900, 1000, crc32(content[900:]))
    assert list(recover(path, descriptor)) == [(0, 300), (500, 1000)]
    discard(path)
    assert not path.exists() and not journal_path(path).exists()


@given(cut=st.integers(0, 200), junk=st.binary(max_size=30))
def test_any_journal_is_read_and_nothing_wrong_is_believed(cut, junk, tmp_path_factory):
    folder = tmp_path_factory.mktemp("journal")
    path, content = folder / "blob.partial", bytes(range(250)) * 4
    path.write_bytes(content)
    descriptor = Descriptor.of_bytes("x/y", content)
    recover(path, descriptor)
    journal = Journal(path)
    journal.add(0, 400, crc32(content[:400]))
    journal.add(400, 800, crc32(content[400:800]))
    raw = journal_path(path).read_bytes()
    journal_path(path).write_bytes(raw[: max(0, len(raw) - cut)] + junk)
    path.write_bytes(content[:600] + b"x" + content[601:])
    assert list(recover(path, descriptor)) in ([], [(0, 400)])


def blob_of(size, held=()):
    class Fake:
        def __init__(self):
            self.size = size
            self._held = RangeSet(held)

        def missing(self):
            return RangeSet(self._held.missing(0, size))

    return Fake()


@given(
    size=st.integers(1, 5000),
    held=st.lists(spans, max_size=4),
    wanted=st.lists(spans, max_size=4),
    least=st.integers(1, 700),
)
def test_every_missing_byte_is_fetched_once(size, held, wanted, least):
    held = [(min(a, size), min(b, size)) for a, b in held]
    blob = blob_of(size, held)
    schedule = Schedule([blob], RangePolicy(least=least, most=1000, tail=min(64, least)))
    for start, end in wanted:
        schedule.want(blob, min(start, size), min(end, size))
    seen = RangeSet()
    while (segment := schedule.take()) is not None:
        assert seen.add(segment.position, segment.end) == segment.end - segment.position > 0
    assert list(seen) == list(blob.missing())


def test_the_end_comes_first_then_what_is_wanted_then_the_rest():
    blob = blob_of(1000)
    schedule = Schedule([blob], RangePolicy(connections=2, least=200, most=400, tail=50))
    first = schedule.take()
    assert (first.position, first.end) == (950, 1000)
    schedule.want(blob, 600, 700)
    taken = [schedule.take() for _ in range(6)]
    assert [(item.position, item.end) for item in taken if item] == [
        (600, 700), (0, 200), (200, 400), (400, 600), (700, 900), (900, 950),
    ]  # fmt: skip


@pytest.fixture
def large(publish):
    """A wheel that comes in about ten ranges."""
    return publish(extra=members(1_000_000))


def fetch(published, server, **options):
    store = BlobStore(published.home, ranges=TINY, sleep=lambda delay: None, **options)
    source = open_source(parse_reference(server.reference), timeout=5)
    layer = published.manifest.layers[0]
    path = store.fetch(source, layer, lambda count: None)
    assert path.read_bytes() == published.wheel.read_bytes()
    return [headers.get("Range") for path, headers in server.requests if layer.digest in path]


def test_many_ranges_bring_every_byte_once(large, faulty_large):
    asked = fetch(large, faulty_large)
    assert len(asked) > 5 and None not in asked
    assert faulty_large.sent(large.manifest.layers[0].digest) == large.wheel.stat().st_size


def test_a_registry_that_ignores_ranges_is_asked_once(large, faulty_large):
    faulty_large.knows_ranges = False
    assert len(fetch(large, faulty_large)) == 1
    assert faulty_large.sent(large.manifest.layers[0].digest) == large.wheel.stat().st_size


def test_a_registry_that_ignores_ranges_and_breaks_off(large, faulty_large):
    faulty_large.knows_ranges = False
    faulty_large.faults["blobs"] += [faults.stop_after(60_000), faults.stop_after(100_000)]
    assert len(fetch(large, faulty_large)) == 3


def test_a_registry_that_ignores_ranges_now_and_then(large, faulty_large):
    serve = lambda handler, content, start: handler.serve(content, start, stop=handler.stop)  # noqa: E731
    faulty_large.faults["blobs"] += [serve, faults.ignoring_range(), serve, faults.ignoring_range()]
    fetch(large, faulty_large)


def test_ranges_that_are_cut_short_are_asked_for_again(large, faulty_large):
    def half(handler, content, start):
        stop = (start + min(handler.stop or len(content), len(content))) // 2
        handler.serve(content, start, stop=max(stop, start + 1))

    faulty_large.faults["blobs"] += [half] * 6
    fetch(large, faulty_large)
    assert faulty_large.sent(large.manifest.layers[0].digest) == large.wheel.stat().st_size


def test_ranges_of_a_blob_of_another_size_are_refused(large, faulty_large):
    content = large.wheel.read_bytes() + b"more"
    faulty_large.faults["blobs"] += [
        lambda handler, _, start: handler.serve(content, start, stop=handler.stop)
    ]
    with pytest.raises(VerificationError, match="wrong size"):
        fetch(large, faulty_large)


def test_a_range_with_other_bytes_is_found_and_nothing_is_kept(large, faulty_large):
    content = bytearray(large.wheel.read_bytes())
    content[len(content) // 2] ^= 1
    faulty_large.faults["blobs"] += [
        lambda handler, _, start: handler.serve(bytes(content), start, stop=handler.stop)
    ] * 20
    with pytest.raises(VerificationError, match="wrong digest"):
        fetch(large, faulty_large)
    assert not list(large.home.root.glob("blobs/sha256/*"))


def test_one_login_serves_all_connections(large, faulty_large):
    faulty_large.needs_token = True
    fetch(large, faulty_large)
    assert faulty_large.tokens_given == 1


@pytest.fixture
def faulty_large(large):
    with faults.faulty_registry(large.layout) as server:
        yield server


def test_readers_wait_for_their_bytes_and_hear_of_errors(partial, tmp_path):
    _, descriptor, content = partial
    path = tmp_path / "other.partial"
    path.write_bytes(bytes(1000))
    recover(path, descriptor)
    arrivals = Arrivals()
    blob = Blob(
        descriptor, path, arrivals, RangeSet(), final=tmp_path / "final", journal=Journal(path)
    )
    results = []
    reader = threading.Thread(target=lambda: results.append(blob.read(200, 400)))
    reader.start()
    blob.put(300, content[300:500])
    blob.put(100, content[100:320])
    reader.join(10)
    assert results == [content[200:400]]
    assert blob.received == 400

    def hear():
        with pytest.raises(OSError, match="gone"):
            blob.read(0, 1000)
        results.append("heard")

    reader = threading.Thread(target=hear)
    reader.start()
    arrivals.fail(OSError("gone"))
    reader.join(10)
    assert results[-1] == "heard"
