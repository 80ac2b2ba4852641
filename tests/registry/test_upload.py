"""Uploads through faults: each ends in the right bytes or in a clear error."""

from pathlib import Path

import pytest

from kvreg.errors import NetworkError, VerificationError
from kvreg.model.oci import Descriptor
from registry.outgoing import Hashing, Needless, Upload
from registry.retry import RetryPolicy
from registry.upload import UploadPolicy
from tests.registry.conftest import MakeRemote
from tests.registry.proxy import (
    Proxy,
    applied_then,
    applied_then_reset,
    partly_applied,
    reset,
    respond,
    stalled,
    with_header,
)
from tests.registry.samples import blob, read
from tests.support.distribution import Distribution

IN_CHUNKS = UploadPolicy(stream_bytes=0, chunk_bytes=10_000)


def test_in_one_stream(distribution: Distribution, make_remote: MakeRemote) -> None:
    data, descriptor = blob(300_000)
    remote = make_remote(distribution.host)
    assert remote.push_blob(data, descriptor)
    assert read(remote, descriptor) == data


def test_what_is_there_is_not_sent_again(proxy: Proxy, make_remote: MakeRemote) -> None:
    data, descriptor = blob(5000)
    remote = make_remote(proxy.host)
    remote.push_blob(data, descriptor)
    sent = proxy.count("POST"), proxy.count("PUT")
    assert not remote.push_blob(data, descriptor)
    assert (proxy.count("POST"), proxy.count("PUT")) == sent


@pytest.mark.parametrize("size", [0, 1, 9_999, 10_000, 10_001, 45_000])
def test_in_chunks(size: int, distribution: Distribution, make_remote: MakeRemote) -> None:
    data, descriptor = blob(size)
    remote = make_remote(distribution.host, upload=IN_CHUNKS)
    assert remote.push_blob(data, descriptor)
    assert read(remote, descriptor) == data


def test_progress_counts_every_byte_once(proxy: Proxy, make_remote: MakeRemote) -> None:
    data, descriptor = blob(45_000)
    proxy.sticky_uploads = True
    proxy.fail("PATCH", "uploads", applied_then(500), times=2)
    proxy.fail("PATCH", "uploads", partly_applied(700))
    counts: list[int] = []
    make_remote(proxy.host, upload=IN_CHUNKS).push_blob(data, descriptor, counts.append)
    assert sum(counts) == 45_000


@pytest.mark.parametrize(
    "action",
    [
        applied_then(500),
        applied_then(502),
        applied_then_reset,
        partly_applied(3_333),
        partly_applied(0),
        reset,
        respond(503),
        respond(429, {"Retry-After": "3"}),
        respond(408),
    ],
)
def test_chunks_go_on_from_the_reported_offset(
    action: object, proxy: Proxy, make_remote: MakeRemote
) -> None:
    data, descriptor = blob(45_000)
    proxy.sticky_uploads = True
    proxy.fail("PATCH", "uploads", action, skip=2)  # type: ignore[arg-type]
    remote = make_remote(proxy.host, upload=IN_CHUNKS)
    remote.push_blob(data, descriptor)
    assert read(remote, descriptor) == data
    assert proxy.count("POST") == 1, "the upload was started again"
    assert proxy.count("PATCH") <= 6


def test_a_registry_that_cannot_resume_is_sent_everything_again(
    proxy: Proxy, make_remote: MakeRemote
) -> None:
    """CNCF Distribution 2.8 forgets an upload whose last answer was lost."""
    data, descriptor = blob(45_000)
    proxy.fail("PATCH", "uploads", applied_then(500), skip=2)
    remote = make_remote(proxy.host, upload=IN_CHUNKS)
    remote.push_blob(data, descriptor)
    assert read(remote, descriptor) == data
    assert proxy.count("POST") == 2


@pytest.mark.parametrize(
    ("action", "rest"),
    [(reset, 5), (respond(500), 5), (respond(502), 5), (partly_applied(27_000), 2)],
)
def test_a_broken_stream_goes_on_in_chunks(
    action: object, rest: int, proxy: Proxy, make_remote: MakeRemote
) -> None:
    data, descriptor = blob(45_000)
    proxy.sticky_uploads = True
    proxy.fail("PATCH", "uploads", action)  # type: ignore[arg-type]
    remote = make_remote(proxy.host, upload=UploadPolicy(chunk_bytes=10_000))
    remote.push_blob(data, descriptor)
    assert read(remote, descriptor) == data
    assert proxy.count("POST") == 1, "the upload was started again"
    assert proxy.count("PATCH") == 1 + rest


def test_too_large_for_a_proxy_goes_in_chunks_at_once(
    proxy: Proxy, make_remote: MakeRemote
) -> None:
    data, descriptor = blob(45_000)
    proxy.fail("PATCH", "uploads", respond(413))
    remote = make_remote(proxy.host, upload=UploadPolicy(chunk_bytes=10_000))
    remote.push_blob(data, descriptor)
    assert read(remote, descriptor) == data
    assert remote.slept == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("upload", [None, IN_CHUNKS])
@pytest.mark.parametrize("action", [applied_then(500), applied_then_reset])
def test_a_lost_answer_to_the_commit_is_no_fault(
    action: object, upload: UploadPolicy | None, proxy: Proxy, make_remote: MakeRemote
) -> None:
    data, descriptor = blob(25_000)
    proxy.fail("PUT", "uploads", action)  # type: ignore[arg-type]
    remote = make_remote(proxy.host, upload=upload)
    remote.push_blob(data, descriptor)
    assert read(remote, descriptor) == data
    assert proxy.count("POST") == 1


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_a_forgotten_upload_is_started_again(
    method: str, proxy: Proxy, make_remote: MakeRemote
) -> None:
    data, descriptor = blob(25_000)
    proxy.fail(method, "uploads", respond(404))
    remote = make_remote(proxy.host, upload=IN_CHUNKS)
    remote.push_blob(data, descriptor)
    assert read(remote, descriptor) == data


def test_a_registry_that_never_recovers_is_given_up(proxy: Proxy, make_remote: MakeRemote) -> None:
    data, descriptor = blob(25_000)
    proxy.fail("PATCH", "uploads", respond(503), times=1000)
    proxy.fail("PUT", "uploads", respond(503), times=1000)
    with pytest.raises(NetworkError, match="503") as caught:
        make_remote(proxy.host, upload=UploadPolicy(chunk_bytes=10_000)).push_blob(data, descriptor)
    assert caught.value.exit_code == 4
    assert len(proxy.log) < 60


def test_a_stall_ends_in_a_timeout_and_another_try(proxy: Proxy, make_remote: MakeRemote) -> None:
    from registry.transport import Timeouts

    data, descriptor = blob(5000)
    proxy.fail("PATCH", "uploads", stalled(3))
    remote = make_remote(proxy.host, timeouts=Timeouts(1, 0.5, 0.5))
    remote.push_blob(data, descriptor)
    assert read(remote, descriptor) == data


def test_a_lying_offset_is_refused(proxy: Proxy, make_remote: MakeRemote) -> None:
    data, descriptor = blob(45_000)
    proxy.sticky_uploads = True
    proxy.fail("PATCH", "uploads", reset, skip=1)
    proxy.fail("GET", "uploads", respond(204, {"Range": "0-44000"}))
    with pytest.raises(NetworkError, match="more of an upload than was sent"):
        make_remote(proxy.host, upload=IN_CHUNKS).push_blob(data, descriptor)


@pytest.mark.parametrize(
    "location", [None, "ftp://elsewhere/x", "http://", "::", "http://[::1", "http://h:99999/"]
)
def test_a_location_that_leads_nowhere(
    location: str | None, proxy: Proxy, make_remote: MakeRemote
) -> None:
    data, descriptor = blob(5000)
    proxy.fail("POST", "uploads", with_header("Location", location))
    with pytest.raises(NetworkError):
        make_remote(proxy.host, retry=RetryPolicy(attempts=1)).push_blob(data, descriptor)


def test_a_relative_location(proxy: Proxy, make_remote: MakeRemote) -> None:
    data, descriptor = blob(45_000)
    proxy.sticky_uploads = True  # those are relative
    remote = make_remote(proxy.host, upload=IN_CHUNKS)
    remote.push_blob(data, descriptor)
    assert read(remote, descriptor) == data


def test_the_registry_may_ask_for_larger_chunks(proxy: Proxy, make_remote: MakeRemote) -> None:
    data, descriptor = blob(45_000)
    proxy.fail("POST", "uploads", with_header("OCI-Chunk-Min-Length", "20000"))
    make_remote(proxy.host, upload=IN_CHUNKS).push_blob(data, descriptor)
    assert proxy.count("PATCH") == 3


@pytest.mark.parametrize("upload", [None, IN_CHUNKS])
def test_a_source_that_is_something_else_is_never_stored(
    upload: UploadPolicy | None,
    distribution: Distribution,
    make_remote: MakeRemote,
    tmp_path: Path,
) -> None:
    data, descriptor = blob(25_000)
    path = tmp_path / "blob"
    path.write_bytes(data[:-1] + b"?")
    remote = make_remote(distribution.host, upload=upload)
    with pytest.raises(VerificationError) as caught:
        remote.push_blob(path, descriptor)
    assert caught.value.expected == descriptor.digest
    assert not remote.has_blob(descriptor)


def test_a_source_of_another_size_is_refused_before_anything_is_sent(
    proxy: Proxy, make_remote: MakeRemote
) -> None:
    data, descriptor = blob(5000)
    remote = make_remote(proxy.host)
    with pytest.raises(VerificationError, match="is not the blob"):
        remote.push_blob(data + b"x", descriptor)
    assert proxy.count("POST") == 0


def test_a_registry_that_stores_other_bytes_is_found_out(
    proxy: Proxy, make_remote: MakeRemote
) -> None:
    data, descriptor = blob(5000)
    wrong = "sha256:" + "0" * 64
    proxy.fail("PUT", "uploads", with_header("Docker-Content-Digest", wrong))
    with pytest.raises(VerificationError, match="stored other bytes"):
        make_remote(proxy.host).push_blob(data, descriptor)


def test_a_refusal_says_what_the_registry_says(proxy: Proxy, make_remote: MakeRemote) -> None:
    data, descriptor = blob(5000)
    body = b'{"errors":[{"code":"UNSUPPORTED","message":"read\\u001b[31m only"}]}'
    proxy.fail("POST", "uploads", respond(405, {"Content-Type": "application/json"}, body))
    with pytest.raises(NetworkError) as caught:
        make_remote(proxy.host).push_blob(data, descriptor)
    assert "UNSUPPORTED: read?[31m only" in str(caught.value)


def test_mounting_moves_no_byte(proxy: Proxy, make_remote: MakeRemote, repository: str) -> None:
    data, descriptor = blob(5000)
    source = make_remote(proxy.host)
    source.push_blob(data, descriptor)
    destination = make_remote(proxy.host, name=repository + "-copy")
    assert destination.mount(descriptor, source)
    assert read(destination, descriptor) == data
    absent = Descriptor("application/octet-stream", "sha256:" + "1" * 64, 3)
    assert not destination.mount(absent, source)
    assert proxy.count("PUT", "uploads") == 1


@pytest.mark.parametrize("action", [None, reset, applied_then(500), partly_applied(27_000)])
def test_a_file_is_hashed_while_it_is_sent(
    action: object, proxy: Proxy, make_remote: MakeRemote, tmp_path: Path
) -> None:
    data, descriptor = blob(45_000)
    path = tmp_path / "file"
    path.write_bytes(data)
    if action is not None:
        proxy.fail("PATCH", "uploads", action)  # type: ignore[arg-type]
    counts: list[int] = []
    remote = make_remote(proxy.host)
    file, sent = remote.push_file(path, counts.append)
    assert (file.digest, file.size, sent) == (descriptor.digest, 45_000, True)
    assert sum(counts) == 45_000
    assert read(remote, descriptor) == data


def test_a_file_that_is_there_is_not_stored_again(
    proxy: Proxy, make_remote: MakeRemote, tmp_path: Path
) -> None:
    data, descriptor = blob(45_000)
    path = tmp_path / "file"
    path.write_bytes(data)
    remote = make_remote(proxy.host)
    remote.push_blob(data, descriptor)
    file, sent = remote.push_file(path)
    assert (file.digest, sent) == (descriptor.digest, False)
    assert proxy.count("PUT", "uploads") == 1
    assert proxy.count("DELETE", "uploads") == 1, "the upload was left open"


def test_sending_ends_when_the_file_turns_out_to_be_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    with Hashing(path, lambda file: False) as hashing, Upload(hashing, None) as upload:
        hashing.hashed  # noqa: B018  waits
        with pytest.raises(Needless):
            upload.read_at(0, 1000)


def test_a_file_that_changes_while_it_is_sent_is_not_stored(
    distribution: Distribution, make_remote: MakeRemote, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 3_000_000)

    def write(count: int) -> None:
        with path.open("ab") as stream:
            stream.write(b"?")

    remote = make_remote(distribution.host)
    with pytest.raises(VerificationError, match=r"changed|is not the blob"):
        remote.push_file(path, write)
