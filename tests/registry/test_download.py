"""Downloads through faults: never a wrong byte, and no file that is not whole."""

from pathlib import Path

import pytest

from kvreg.errors import NetworkError, NotFoundError, VerificationError
from kvreg.model.oci import Descriptor
from registry.stream import CHUNK_BYTES
from registry.transport import Timeouts
from tests.registry.conftest import MakeRemote
from tests.registry.proxy import (
    Answer,
    Forward,
    Proxy,
    Request,
    flipped,
    reset,
    respond,
    stalled,
    truncated,
    with_header,
)
from tests.registry.samples import OCTETS, blob, push_artifact, read

SIZE = 3 * CHUNK_BYTES + 17


@pytest.mark.parametrize("count", [0, 1, 1000, CHUNK_BYTES, CHUNK_BYTES + 5, SIZE - 1])
def test_a_broken_download_goes_on(
    count: int, proxy: Proxy, make_remote: MakeRemote, tmp_path: Path
) -> None:
    data, descriptor = blob(SIZE)
    remote = make_remote(proxy.host)
    remote.push_blob(data, descriptor)
    proxy.fail("GET", "blobs", truncated(count), times=2)
    remote.fetch_blob(descriptor, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == data
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["blob"]


def test_a_registry_without_ranges(proxy: Proxy, make_remote: MakeRemote) -> None:
    data, descriptor = blob(SIZE)
    remote = make_remote(proxy.host)
    remote.push_blob(data, descriptor)

    def whole(request: Request, forward: Forward) -> Answer:
        request.headers.pop("Range")
        return forward(request)

    proxy.fail("GET", "blobs", truncated(CHUNK_BYTES + 5))
    proxy.fail("GET", "blobs", whole)
    assert read(remote, descriptor) == data


def test_a_stalled_download_times_out_and_goes_on(proxy: Proxy, make_remote: MakeRemote) -> None:
    data, descriptor = blob(5000)
    remote = make_remote(proxy.host, timeouts=Timeouts(1, 0.5, 5))
    remote.push_blob(data, descriptor)
    proxy.fail("GET", "blobs", stalled(2))
    assert read(remote, descriptor) == data


def test_another_range_than_asked_for(proxy: Proxy, make_remote: MakeRemote) -> None:
    data, descriptor = blob(SIZE)
    remote = make_remote(proxy.host)
    remote.push_blob(data, descriptor)
    proxy.fail("GET", "blobs", truncated(CHUNK_BYTES + 5))
    proxy.fail("GET", "blobs", with_header("Content-Range", f"bytes 0-{SIZE - 1}/{SIZE}"))
    with pytest.raises(NetworkError, match="another range"):
        read(remote, descriptor)


@pytest.mark.parametrize(
    "action",
    [
        flipped,
        respond(200, {"Content-Type": "text/html"}, b"<html>sign in</html>"),
        respond(200, {"Content-Type": OCTETS}, b"x" * 5000),
        respond(200, {"Content-Type": OCTETS}, b"x" * 5001),
    ],
)
def test_wrong_bytes_are_refused(
    action: object, proxy: Proxy, make_remote: MakeRemote, tmp_path: Path
) -> None:
    data, descriptor = blob(5000)
    remote = make_remote(proxy.host)
    remote.push_blob(data, descriptor)
    proxy.fail("GET", "blobs", action)  # type: ignore[arg-type]
    with pytest.raises(VerificationError) as caught:
        remote.fetch_blob(descriptor, tmp_path / "blob")
    assert caught.value.exit_code == 1
    assert not (tmp_path / "blob").exists()
    remote.fetch_blob(descriptor, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == data


def test_absent(proxy: Proxy, make_remote: MakeRemote) -> None:
    remote = make_remote(proxy.host)
    with pytest.raises(NotFoundError):
        read(remote, Descriptor(OCTETS, "sha256:" + "0" * 64, 3))


def test_given_up_after_the_policy_allows(proxy: Proxy, make_remote: MakeRemote) -> None:
    data, descriptor = blob(5000)
    remote = make_remote(proxy.host)
    remote.push_blob(data, descriptor)
    proxy.fail("GET", "blobs", reset, times=100)
    with pytest.raises(NetworkError, match="5 times"):
        read(remote, descriptor)
    assert len(remote.slept) == 4  # type: ignore[attr-defined]


def test_a_wrong_manifest_is_refused(proxy: Proxy, make_remote: MakeRemote) -> None:
    remote = make_remote(proxy.host)
    manifest = push_artifact(remote, "one")
    digest = manifest.descriptor().digest
    for pattern in (digest, "one"):
        proxy.fail("GET", f"manifests/{pattern}", flipped)
        with pytest.raises(VerificationError):
            remote.resolve(pattern)
    found = remote.resolve("one")
    assert found is not None
    assert found.digest == digest
    assert remote.fetch_manifest(digest) == manifest.to_bytes()


def test_an_error_page_is_no_manifest(proxy: Proxy, make_remote: MakeRemote) -> None:
    remote = make_remote(proxy.host)
    proxy.fail("GET", "manifests", respond(200, {"Content-Type": "text/html"}, b"<html>"))
    with pytest.raises(VerificationError, match="something else than a manifest"):
        remote.resolve("one")


def test_an_endless_manifest_is_not_read(proxy: Proxy, make_remote: MakeRemote) -> None:
    remote = make_remote(proxy.host)
    kind = "application/vnd.oci.image.manifest.v1+json"
    proxy.fail("GET", "manifests", respond(200, {"Content-Type": kind}, b" " * 6_000_000))
    with pytest.raises(NetworkError, match="too large"):
        remote.resolve("one")
