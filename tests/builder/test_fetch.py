"""Fetching by hash from a package index on loopback, with faults."""

import hashlib
import io
import os
import zipfile

import pytest

from builder.cache import InputCache
from builder.fetch import bytes_missing, fetch, missing
from builder.index import PackageIndex, target_tags
from builder.inputs import Input, Member
from kvreg.errors import NetworkError, NotFoundError, VerificationError
from tests.support.package_index import loopback_index

DATA = os.urandom(3_000_000)


@pytest.fixture
def index():
    with loopback_index() as running:
        yield running


@pytest.fixture
def cache(tmp_path):
    return InputCache(tmp_path / "cache")


def wheel_input(index, name="a", data=DATA) -> Input:
    filename = f"{name}-1-py3-none-any.whl"
    sha256 = index.add(name, filename, data)
    return Input(name, "1", "wheel", filename, len(data), sha256)


def nothing(_: int) -> None:
    pass


def test_all_inputs_arrive_under_their_digest(index, cache):
    inputs = [wheel_input(index, name, os.urandom(200_000)) for name in "abcdefgh"]
    seen = []
    done = fetch(inputs, cache, PackageIndex(index.url), seen.append)
    assert (done.present, done.downloaded) == (0, 8)
    assert done.transferred_bytes == sum(seen) == 8 * 200_000
    for item in inputs:
        data = cache.path(item.sha256).read_bytes()
        assert hashlib.sha256(data).hexdigest() == item.sha256


def test_what_is_there_is_not_asked_for_again(index, cache):
    item = wheel_input(index)
    fetch([item], cache, PackageIndex(index.url), nothing)
    index.requests.clear()
    done = fetch([item], cache, PackageIndex(index.url), nothing)
    assert (done.present, done.downloaded, index.requests) == (1, 0, [])


def test_a_body_that_breaks_off_is_gone_on_with(index, cache):
    item = wheel_input(index)
    index.cut[item.filename] = [1_000_000, 500_000]
    fetch([item], cache, PackageIndex(index.url), nothing)
    assert cache.path(item.sha256).read_bytes() == DATA
    ranges = [r for path, r in index.requests if path.startswith("/files/")]
    assert ranges == [None, "bytes=1000000-", "bytes=1500000-"]


def test_a_killed_fetch_is_gone_on_with_by_the_next(index, cache):
    item = wheel_input(index)
    cache.partial(item.sha256).parent.mkdir(parents=True)
    cache.partial(item.sha256).write_bytes(DATA[:2_000_000])
    assert bytes_missing([item], cache) == 1_000_000
    done = fetch([item], cache, PackageIndex(index.url), nothing)
    assert done.transferred_bytes == 1_000_000
    assert cache.path(item.sha256).read_bytes() == DATA


def test_a_server_without_ranges_is_read_from_the_start(index, cache):
    item = wheel_input(index)
    index.ranges = False
    cache.partial(item.sha256).parent.mkdir(parents=True)
    cache.partial(item.sha256).write_bytes(b"stale" * 100)
    fetch([item], cache, PackageIndex(index.url), nothing)
    assert cache.path(item.sha256).read_bytes() == DATA


def test_a_server_that_never_finishes_ends_in_an_error_that_keeps_the_bytes(index, cache):
    item = wheel_input(index)
    index.cut[item.filename] = [1000] * 50
    with pytest.raises(NetworkError, match="run the command again"):
        fetch([item], cache, PackageIndex(index.url), nothing)
    assert cache.partial(item.sha256).stat().st_size == 5000
    assert not cache.has(item.sha256)


def test_other_bytes_under_the_right_digest_are_refused_and_not_kept(index, cache):
    item = wheel_input(index)
    index.files[item.filename] = ("a", b"x" * len(DATA))
    index.stated[item.filename] = item.sha256
    with pytest.raises(VerificationError) as caught:
        fetch([item], cache, PackageIndex(index.url), nothing)
    assert item.filename in caught.value.what
    assert caught.value.expected == f"sha256:{item.sha256}"
    found = hashlib.sha256(b"x" * len(DATA)).hexdigest()
    assert caught.value.found == f"sha256:{found}"
    assert missing([item], cache) == [item]
    assert not list((cache.root / "partial").iterdir())


def test_a_release_that_changed_since_it_was_locked_is_named(index, cache):
    item = wheel_input(index)
    index.files[item.filename] = ("a", b"another release of the same name")
    with pytest.raises(NotFoundError, match="must not change") as caught:
        fetch([item], cache, PackageIndex(index.url), nothing)
    assert caught.value.expected == f"sha256:{item.sha256}"
    changed = hashlib.sha256(b"another release of the same name").hexdigest()
    assert caught.value.found == f"sha256:{changed}"


def test_one_bad_input_does_not_keep_the_others_from_arriving(index, cache):
    good = [wheel_input(index, name, os.urandom(1000)) for name in "bcd"]
    bad = Input("a", "1", "wheel", "a-1-py3-none-any.whl", 3, "0" * 64)
    with pytest.raises(NotFoundError):
        fetch([bad, *good], cache, PackageIndex(index.url), nothing)
    assert missing(good, cache) == []


def test_members_come_by_range_and_alone(index, cache):
    wanted = {f"pkg/{n}.py": os.urandom(2000) for n in range(20)}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pkg/huge.bin", os.urandom(4_000_000))
        for name, data in wanted.items():
            archive.writestr(name, data)
        archive.writestr("pkg/huge2.bin", os.urandom(4_000_000))
    data = buffer.getvalue()
    sha256 = index.add("a", "a-1-py3-none-any.whl", data)
    members = tuple(
        Member(name, len(body), hashlib.sha256(body).hexdigest()) for name, body in wanted.items()
    )
    item = Input("a", "1", "members", "a-1-py3-none-any.whl", len(data), sha256, members)
    fetch([item], cache, PackageIndex(index.url), nothing)
    for member in members:
        assert cache.path(member.sha256).read_bytes() == wanted[member.path]
    sent = 0
    for path, wanted_range in index.requests:
        if path.startswith("/files/") and wanted_range:
            start, end = wanted_range.removeprefix("bytes=").split("-")
            sent += int(end) - int(start) + 1
    assert sent < len(data) / 4


def test_a_member_with_other_bytes_is_refused(index, cache):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("pkg/x.py", b"found")
    sha256 = index.add("a", "a-1-py3-none-any.whl", buffer.getvalue())
    member = Member("pkg/x.py", 5, hashlib.sha256(b"other").hexdigest())
    item = Input("a", "1", "members", "a-1-py3-none-any.whl", 9, sha256, (member,))
    with pytest.raises(VerificationError, match=r"pkg/x\.py"):
        fetch([item], cache, PackageIndex(index.url), nothing)


def test_the_best_wheel_is_the_one_pip_would_take(index):
    for filename in (
        "t-1.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        "t-1.0-3-cp312-cp312-manylinux_2_28_x86_64.whl",
        "t-1.0-cp313-cp313-manylinux_2_28_x86_64.whl",
        "t-1.0-cp312-cp312-manylinux_2_38_x86_64.whl",
        "t-1.0-cp312-cp312-manylinux_2_28_aarch64.whl",
        "t-1.0-py3-none-any.whl",
        "t-1.1-cp312-cp312-manylinux_2_28_x86_64.whl",
    ):
        index.add("t", filename, filename.encode())
    best = PackageIndex(index.url).best_wheel("t", "1.0", target_tags())
    assert best.filename == "t-1.0-3-cp312-cp312-manylinux_2_28_x86_64.whl"
