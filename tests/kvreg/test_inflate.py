"""Every library that can inflate gives the same bytes and refuses the same."""

import random
import zlib

import pytest

from kvreg.errors import UsageError
from kvreg.wheel import inflate
from kvreg.wheel.inflate import CHUNK, DamagedError, available, fastest

CONTENT = random.Random(1).randbytes(3000) * 1000 + bytes(2 * CHUNK)


def deflated(data):
    state = zlib.compressobj(6, zlib.DEFLATED, -15)
    return state.compress(data) + state.flush()


PACKED = deflated(CONTENT)
everyone = pytest.mark.parametrize("library", available(), ids=lambda library: library.name)


def test_the_ones_that_developers_install_are_here():
    assert [library.name for library in available()] == ["isal", "zlib-ng", "zlib"]


@everyone
@pytest.mark.parametrize("piece", [7, 1000, 1 << 18, 1 << 30])
def test_the_bytes_come_out(library, piece):
    data = PACKED[:5000] if piece == 7 else PACKED
    content = CONTENT
    if piece == 7:
        content = CONTENT[:9000]
        data = deflated(content)
    pieces = [data[start : start + piece] for start in range(0, len(data), piece)]
    chunks = list(library.chunks(pieces, len(content)))
    assert b"".join(chunks) == content
    assert max(map(len, chunks)) <= CHUNK


@everyone
@pytest.mark.parametrize("content", [b"", b"x", bytes(70_000)])
def test_small_members_at_once(library, content):
    assert library.whole(deflated(content), len(content)) == content


@everyone
@pytest.mark.parametrize("way", ["whole", "chunks"])
@pytest.mark.parametrize(
    ("data", "size"),
    [
        (PACKED[:-1], len(CONTENT)),
        (PACKED + b"x", len(CONTENT)),
        (PACKED, len(CONTENT) - 1),
        (PACKED, len(CONTENT) + 1),
        (b"", 5),
        (b"\xff\xff", 3),
        (b"", 0),
    ],
)
def test_what_is_damaged_is_refused(library, way, data, size):
    with pytest.raises(DamagedError):
        if way == "whole":
            library.whole(data, size)
        else:
            list(library.chunks([data[:100], data[100:]], size))


@everyone
def test_a_bomb_is_not_inflated(library):
    bomb = deflated(bytes(200 << 20))
    given = []
    with pytest.raises(DamagedError, match="more than"):
        for chunk in library.chunks([bomb], 1000):
            given.append(chunk)
    assert not given
    with pytest.raises(DamagedError, match="more than"):
        library.whole(bomb, 1000)


def test_the_choice(monkeypatch):
    fastest.cache_clear()
    assert fastest().name == "isal"
    for name in ("zlib", "zlib-ng"):
        monkeypatch.setenv("KVREG_INFLATE", name)
        fastest.cache_clear()
        assert fastest().name == name
    monkeypatch.setenv("KVREG_INFLATE", "other")
    fastest.cache_clear()
    with pytest.raises(UsageError, match="not installed"):
        fastest()
    monkeypatch.delenv("KVREG_INFLATE")
    monkeypatch.setitem(inflate._LOADERS, "isal", lambda: None)
    fastest.cache_clear()
    assert fastest().name == "zlib-ng"
    fastest.cache_clear()
