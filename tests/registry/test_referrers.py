"""The referrers of a registry: the API, the tag schema, and two writers at once."""

import json
import threading

import pytest

from kvreg.errors import NetworkError, VerificationError
from kvreg.model.oci import MEDIA_TYPE_INDEX, Descriptor, Index
from registry.attach import attach
from registry.referrers import fallback_tag, filtered, parse_referrers, with_referrer
from tests.registry.conftest import MakeRemote
from tests.registry.proxy import Answer, Forward, Proxy, Request, respond
from tests.registry.samples import push_artifact
from tests.support.distribution import Distribution

ONE, TWO, THREE = (
    Descriptor("a/b", "sha256:" + digit * 64, 1, {}, f"application/x-{digit}") for digit in "123"
)


def test_the_tag_schema_is_an_index_under_a_tag(
    distribution: Distribution, make_remote: MakeRemote
) -> None:
    remote = make_remote(distribution.host)
    subject = push_artifact(remote, "one").descriptor()
    sbom = attach(remote, subject, "application/x-sbom", b"1", "sbom.json", {"k": "v"})
    listed = remote.resolve(fallback_tag(subject.digest))
    assert listed is not None
    assert listed.media_type == MEDIA_TYPE_INDEX
    table = json.loads(remote.fetch_manifest(listed.digest))
    assert table["manifests"] == [
        {
            "mediaType": sbom.media_type,
            "digest": sbom.digest,
            "size": sbom.size,
            "artifactType": "application/x-sbom",
            "annotations": {"k": "v"},
        }
    ]


def test_the_api_leaves_no_tag(proxy: Proxy, make_remote: MakeRemote) -> None:
    proxy.referrers_api = True
    remote = make_remote(proxy.host)
    subject = push_artifact(remote, "one").descriptor()
    for number in range(3):
        attach(remote, subject, "application/x-sbom", b"%d" % number, "sbom.json")
    assert remote.resolve(fallback_tag(subject.digest)) is None
    # One a page: following the Link header is the only way to all of them.
    assert len(remote.referrers(subject.digest)) == 3
    assert proxy.count("GET", "/referrers/") == 3


def test_without_the_api_it_is_asked_for_once(proxy: Proxy, make_remote: MakeRemote) -> None:
    remote = make_remote(proxy.host)
    subject = push_artifact(remote, "one").descriptor()
    for _ in range(3):
        assert remote.referrers(subject.digest) == ()
    assert proxy.count("GET", "/referrers/") == 1


def test_a_web_page_is_not_the_api(proxy: Proxy, make_remote: MakeRemote) -> None:
    remote = make_remote(proxy.host)
    subject = push_artifact(remote, "one").descriptor()
    sbom = attach(remote, subject, "application/x-sbom", b"1", "sbom.json")
    page = respond(200, {"Content-Type": "text/html"}, b"<html>not found</html>")
    proxy.fail("GET", "/referrers/", page, times=2)
    assert [item.digest for item in remote.referrers(subject.digest)] == [sbom.digest]


def test_a_web_page_that_comes_once_hides_nothing(proxy: Proxy, make_remote: MakeRemote) -> None:
    proxy.referrers_api = True
    remote = make_remote(proxy.host)
    subject = push_artifact(remote, "one").descriptor()
    sbom = attach(remote, subject, "application/x-sbom", b"1", "sbom.json")
    page = respond(200, {"Content-Type": "text/html"}, b"<html>sign in</html>")
    proxy.fail("GET", "/referrers/", page)
    assert [item.digest for item in remote.referrers(subject.digest)] == [sbom.digest]


def test_a_malformed_list_is_an_error(proxy: Proxy, make_remote: MakeRemote) -> None:
    remote = make_remote(proxy.host)
    page = respond(200, {"Content-Type": MEDIA_TYPE_INDEX}, b'{"schemaVersion":2}')
    proxy.fail("GET", "/referrers/", page)
    with pytest.raises(VerificationError):
        remote.referrers(ONE.digest)


def test_a_list_without_end_is_an_error(proxy: Proxy, make_remote: MakeRemote) -> None:
    body = Index((ONE,)).to_bytes()
    for link in ("?a=1", "http://elsewhere.example/v2/", "http://[::1"):
        headers = {"Content-Type": MEDIA_TYPE_INDEX, "Link": f'<{link}>; rel="next"'}
        proxy.fail("GET", "/referrers/", respond(200, headers, body), times=2)
        with pytest.raises(NetworkError, match="does not end or leads elsewhere"):
            make_remote(proxy.host).referrers(TWO.digest)
        proxy.rules.clear()


def test_writers_at_once_lose_nothing(distribution: Distribution, make_remote: MakeRemote) -> None:
    """Each writer reads the list, adds its entry and writes it back, with no lock to help."""
    from registry.store import open_store

    first = make_remote(distribution.host)
    subject = push_artifact(first, "one").descriptor()
    expected: set[str] = set()
    failures: list[BaseException] = []
    start = threading.Barrier(3)

    def work(name: str) -> None:
        try:
            with open_store(first.location) as store:
                start.wait()
                for number in range(4):
                    payload = f"{name}{number}".encode()
                    found = attach(store, subject, "application/x-sbom", payload, "s.json")
                    expected.add(found.digest)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(expected) == 12
    assert {item.digest for item in first.referrers(subject.digest)} == expected


def test_a_dropped_entry_is_added_again(proxy: Proxy, make_remote: MakeRemote) -> None:
    """Another writer that read the list before us writes it after us."""
    remote = make_remote(proxy.host)
    subject = push_artifact(remote, "one").descriptor()
    other = push_artifact(remote, seed=5).descriptor()

    def overwritten(request: Request, forward: Forward) -> Answer:
        answer = forward(request)
        forward(Request("PUT", request.path, request.headers, Index((other,)).to_bytes()))
        return answer

    proxy.fail("PUT", "manifests/sha256-", overwritten, times=2)
    sbom = attach(remote, subject, "application/x-sbom", b"1", "sbom.json")
    assert {item.digest for item in remote.referrers(subject.digest)} == {
        sbom.digest,
        other.digest,
    }


def test_lists_as_data() -> None:
    raw = with_referrer((ONE,), TWO)
    assert raw is not None
    assert parse_referrers(raw, THREE.digest) == (ONE, TWO)
    assert parse_referrers(raw, ONE.digest) == (TWO,), "an entry that names the subject is ignored"
    assert with_referrer((ONE, TWO), TWO) is None
    assert filtered([TWO, ONE, TWO]) == (ONE, TWO)
    assert filtered([TWO, ONE], "application/x-2") == (TWO,)
    with pytest.raises(VerificationError):
        parse_referrers(b"{}", ONE.digest)
