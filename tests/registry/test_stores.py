"""What every store does alike: each test runs on a layout and on real registries."""

from pathlib import Path

import pytest

from kvreg.errors import ContractError, NotFoundError, UsageError, VerificationError
from kvreg.model.oci import Descriptor, Manifest, empty_descriptor
from registry.attach import attach
from registry.layout import Layout
from registry.remote import Remote
from registry.store import Store, open_store
from tests.registry.conftest import MakeRemote
from tests.registry.proxy import Proxy
from tests.registry.samples import blob, push_artifact, read
from tests.support.distribution import Distribution

ABSENT = "sha256:" + "0" * 64


@pytest.fixture(params=["layout", "distribution", "referrers API"])
def store(request: pytest.FixtureRequest, tmp_path: Path, make_remote: MakeRemote) -> Store:
    """A layout, a registry without the referrers API, a registry with it."""
    if request.param == "layout":
        return Layout(tmp_path / "layout")
    if request.param == "distribution":
        return make_remote(request.getfixturevalue("distribution").host)
    proxy: Proxy = request.getfixturevalue("proxy")
    proxy.referrers_api = True
    return make_remote(proxy.host)


def test_blobs(store: Store, tmp_path: Path) -> None:
    data, descriptor = blob(3_000_000)
    store.prepare()
    assert not store.has_blob(descriptor)
    (tmp_path / "in").write_bytes(data)
    assert store.push_blob(tmp_path / "in", descriptor)
    assert not store.push_blob(tmp_path / "in", descriptor)
    assert store.has_blob(descriptor)
    counts: list[int] = []
    store.fetch_blob(descriptor, tmp_path / "out", counts.append)
    assert (tmp_path / "out").read_bytes() == data
    assert sum(counts) == len(data)


def test_streams(store: Store) -> None:
    data, descriptor = blob(5000)
    assert store.push_stream(iter([data[:3000], data[3000:]]), descriptor)
    assert read(store, descriptor) == data
    other, described = blob(5000, seed=2)
    with pytest.raises(VerificationError):
        store.push_stream(iter([other[:-1]]), described)
    assert not store.has_blob(described)


def test_absent_things(store: Store, tmp_path: Path) -> None:
    push_artifact(store, "one")
    assert store.resolve("two") is None
    assert store.resolve(ABSENT) is None
    with pytest.raises(NotFoundError):
        store.fetch_manifest(ABSENT)
    with pytest.raises(NotFoundError):
        store.fetch_blob(Descriptor("a/b", ABSENT, 1), tmp_path / "out")
    with pytest.raises(UsageError):
        store.fetch_manifest("one")
    assert store.referrers(ABSENT) == ()
    assert not (tmp_path / "out").exists()


def test_a_manifest_is_the_same_bytes_and_descriptor(store: Store) -> None:
    manifest = push_artifact(store, "one")
    expected = manifest.descriptor()
    assert store.resolve("one") == store.resolve(expected.digest) == expected
    assert store.fetch_manifest(expected.digest) == manifest.to_bytes()


def test_tags(store: Store) -> None:
    first = push_artifact(store, "one").descriptor()
    second = push_artifact(store, seed=2).descriptor()
    store.tag(first, "fixed", move=False)
    store.tag(first, "fixed", move=False)
    with pytest.raises(ContractError, match="never moved"):
        store.tag(second, "fixed", move=False)
    store.tag(second, "one")
    assert store.resolve("one") == second
    assert store.resolve("fixed") == first
    assert store.list_tags() == ("fixed", "one")


@pytest.mark.parametrize("tag", ["", "../x", "a/b", "a b", "-x", "x" * 129, "a\nb"])
def test_what_can_be_no_tag(tag: str, store: Store) -> None:
    descriptor = push_artifact(store, "one").descriptor()
    with pytest.raises(UsageError, match="not a valid tag"):
        store.tag(descriptor, tag)
    with pytest.raises(UsageError, match="not a valid tag"):
        store.push_manifest(store.fetch_manifest(descriptor.digest), tag=tag)
    assert store.list_tags() == ("one",)


def test_attaching(store: Store) -> None:
    subject = push_artifact(store, "one").descriptor()
    other = push_artifact(store, "two", seed=2).descriptor()
    kind = "application/vnd.cyclonedx+json"
    sbom = attach(store, subject, kind, b'{"a":1}', "sbom.json", {"note": "x"})
    again = attach(store, subject, kind, b'{"a":1}', "sbom.json", {"note": "x"})
    record = attach(store, subject, "application/x-record", b"r", "record.json")
    assert again == sbom
    assert {item.digest for item in store.referrers(subject.digest)} == {sbom.digest, record.digest}
    (listed,) = store.referrers(subject.digest, kind)
    assert listed == Descriptor(
        sbom.media_type, sbom.digest, sbom.size, {"note": "x"}, artifact_type=kind
    )
    assert store.referrers(other.digest) == ()
    assert store.list_tags() == ("one", "two")
    manifest = Manifest.parse(store.fetch_manifest(sbom.digest))
    assert manifest.subject is not None
    assert manifest.subject.digest == subject.digest
    assert manifest.config == empty_descriptor()
    assert manifest.layers[0].title == "sbom.json"
    assert read(store, manifest.layers[0]) == b'{"a":1}'


def test_attaching_to_what_is_absent(store: Store) -> None:
    store.prepare()
    with pytest.raises(NotFoundError, match="nothing to attach to"):
        attach(store, Descriptor("a/b", ABSENT, 1), "a/b", b"x", "x.json")
    subject = push_artifact(store, "one").descriptor()
    with pytest.raises(UsageError, match="plain file name"):
        attach(store, subject, "a/b", b"x", "../x.json")


def test_attestations_have_the_same_digest_everywhere(
    tmp_path: Path, distribution: Distribution, proxy: Proxy, make_remote: MakeRemote
) -> None:
    proxy.referrers_api = True
    stores = [
        Layout(tmp_path / "layout"),
        make_remote(distribution.host),
        make_remote(proxy.host, name="team/api-everywhere"),
    ]
    found = set()
    for store in stores:
        subject = push_artifact(store, "one").descriptor()
        found.add(attach(store, subject, "application/x-sbom", b"{}x", "sbom.json"))
    assert len(found) == 1


def test_open_store(tmp_path: Path) -> None:
    layout = open_store(f"oci-layout:{tmp_path}/layout:tag")
    assert isinstance(layout, Layout)
    assert layout.path == tmp_path / "layout"
    remote = open_store("127.0.0.1:5000/team/x:tag")
    assert isinstance(remote, Remote)
    assert remote.location == "127.0.0.1:5000/team/x"
    with pytest.raises(UsageError, match="lower-case"):
        open_store("ghcr.io/Team/x")
