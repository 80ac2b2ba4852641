"""Several transfers at once: their results, their first error, and one login for all."""

import threading
import time
from pathlib import Path

import pytest

from kvreg.errors import VerificationError
from kvreg.model.profile import Profile
from registry.layout import Layout
from registry.parallel import in_parallel
from registry.publish import Layer, publish
from registry.store import Store
from registry.stream import Progress
from registry.verify import verify
from tests.registry.conftest import MakeRemote
from tests.registry.proxy import Answer, Forward, Proxy, Request


def test_results_are_in_the_order_of_the_items() -> None:
    def work(number: int, progress: Progress | None) -> int:
        time.sleep((5 - number) / 500)
        assert progress is not None
        progress(number)
        return number * number

    counts: list[int] = []
    assert in_parallel(work, range(5), progress=counts.append) == [0, 1, 4, 9, 16]
    assert sorted(counts) == [0, 1, 2, 3, 4]
    assert in_parallel(work, [], progress=counts.append) == []


def test_one_item_stays_in_its_thread_with_the_store_itself(tmp_path: Path) -> None:
    layout = Layout(tmp_path)

    def work(item: int, progress: Progress | None, store: Store) -> bool:
        return store is layout and threading.current_thread() is threading.main_thread()

    assert in_parallel(work, [1], layout) == [True]


def test_they_are_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=10)
    in_parallel(lambda item, progress: meeting.wait(), range(3))


def test_the_first_error_ends_the_others_at_their_next_chunk() -> None:
    begun = threading.Barrier(2, timeout=10)
    chunks: list[int] = []

    def work(item: str, progress: Progress | None) -> None:
        if item == "later":
            raise AssertionError("was begun after the error")
        begun.wait()
        if item == "bad":
            raise VerificationError("wrong bytes")
        assert progress is not None
        for number in range(1000):
            chunks.append(number)
            progress(1)
            time.sleep(0.005)

    with pytest.raises(VerificationError, match="wrong bytes"):
        in_parallel(work, ["bad", "good", "later"], workers=2)
    assert len(chunks) < 100


def test_blobs_of_a_push_overlap_on_the_wire(
    proxy: Proxy, make_remote: MakeRemote, profile: Profile, tmp_path: Path
) -> None:
    layers = []
    for number in range(3):
        path = tmp_path / f"part_{number}-1.2-py3-none-any.whl"
        path.write_bytes(bytes([number]) * 50_000)
        layers.append(Layer(path, role="native" if number == 0 else "overlay"))
    meeting = threading.Barrier(4, timeout=10)

    def together(request: Request, forward: Forward) -> Answer:
        meeting.wait()
        return forward(request)

    proxy.token_uses = 1000
    proxy.fail("PUT", "uploads", together, times=4)
    remote = make_remote(proxy.host)
    publish(remote, profile, layers)
    assert verify(remote, "demo").ok
    assert len(proxy.token_requests) == 1, "each connection logged in by itself"
