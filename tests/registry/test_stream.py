"""Digests of several blobs at once: whatever runs beside them, each is its bytes'."""

import hashlib
import threading
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry import stream
from registry.stream import Sha256

LARGE = 8 << 20
"""A size that is worth a thread."""

turns = st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=64)), max_size=60)


@given(turns=turns, closed=st.sets(st.integers(0, 3)), cores=st.sampled_from([1, 2, 4, 16]))
def test_every_digest_is_right_however_many_blobs_are_under_way(turns, closed, cores):
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(stream, "usable_cores", lambda: cores)
        states = [stack.enter_context(Sha256(LARGE)) for _ in range(4)]
        expected = [hashlib.sha256() for _ in states]
        for number, (which, data) in enumerate(turns):
            if number == len(turns) // 2:
                # From here on fewer are under way, and threads may begin.
                for gone in closed:
                    states[gone].close()
            if which not in closed or number < len(turns) // 2:
                states[which].update(data)
                expected[which].update(data)
        for which, state in enumerate(states):
            if which not in closed:
                assert state.digest() == f"sha256:{expected[which].hexdigest()}"
    assert not Sha256._under_way


def test_a_blob_alone_is_hashed_beside_its_transfer_and_many_are_not(monkeypatch):
    monkeypatch.setattr(stream, "usable_cores", lambda: 2)

    def threads() -> int:
        return sum(thread.name.startswith("sha256") for thread in threading.enumerate())

    with Sha256(LARGE) as alone:
        alone.update(b"one")
        assert threads() == 1
        with Sha256(LARGE) as other:
            other.update(b"two")
            assert threads() == 1
        assert alone.digest() == f"sha256:{hashlib.sha256(b'one').hexdigest()}"
    assert threads() == 0
