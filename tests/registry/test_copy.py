"""Copying between stores of every kind, with referrers, and what a copy leaves when it fails."""

import datetime
import itertools
from pathlib import Path

import pytest

from kvreg.errors import ContractError, NetworkError, NotFoundError, VerificationError
from kvreg.model.oci import Descriptor
from kvreg.model.profile import Profile
from registry.attach import attach
from registry.copy import copy
from registry.deletion import delete
from registry.layout import Layout
from registry.publish import Layer, publish
from registry.store import Store
from registry.verify import verify
from tests.registry.conftest import MakeRemote
from tests.registry.proxy import Proxy, flipped, respond
from tests.registry.samples import push_artifact
from tests.support.distribution import Distribution

DAY = datetime.date(2026, 11, 30)


def publish_with_referrers(store: Store, profile: Profile, wheel: Path) -> Descriptor:
    """An artifact, its SBOM, and a signature of the SBOM."""
    done = publish(store, profile, [Layer(wheel, role="native")], date=DAY)
    sbom = attach(store, done.descriptor, "application/x-sbom", b"{}1", "sbom.json", {"a": "b"})
    attach(store, sbom, "application/x-signature", b"sig", "signature")
    return done.descriptor


def graph(store: Store, digest: str) -> dict[str, bytes]:
    """Every manifest from `digest` down its referrers."""
    found = {digest: store.fetch_manifest(digest)}
    for referrer in store.referrers(digest):
        found |= graph(store, referrer.digest)
    return found


def test_all_the_way_round(
    tmp_path: Path,
    profile: Profile,
    wheel: Path,
    distribution: Distribution,
    proxy: Proxy,
    make_remote: MakeRemote,
) -> None:
    """layout, registry, registry with the referrers API, another repository of it, layout."""
    proxy.referrers_api = True
    stores: list[Store] = [
        Layout(tmp_path / "first"),
        make_remote(distribution.host),
        make_remote(proxy.host, name="round/api"),
        make_remote(proxy.host, name="round/mounted"),
        Layout(tmp_path / "last"),
    ]
    found = publish_with_referrers(stores[0], profile, wheel)
    expected = graph(stores[0], found.digest)
    assert len(expected) == 3
    for source, destination in itertools.pairwise(stores):
        done = copy(source, destination, "demo")
        assert done.descriptor == found
        assert (done.manifests, done.referrers) == (3, 2)
        assert done.tags == ("demo", profile.digest_tag)
        assert graph(destination, found.digest) == expected
        assert verify(destination, "demo").ok
        assert destination.resolve(profile.digest_tag) == found


def test_a_second_copy_moves_nothing(
    tmp_path: Path, profile: Profile, wheel: Path, distribution: Distribution,
    make_remote: MakeRemote,
) -> None:  # fmt: skip
    source = make_remote(distribution.host)
    publish_with_referrers(source, profile, wheel)
    layout = Layout(tmp_path / "layout")
    first = copy(source, layout, "demo")
    # profile, wheel, {} once for both referrers, SBOM, signature
    assert (first.blobs_copied, first.blobs_present) == (5, 0)
    again = copy(source, layout, "demo")
    assert (again.blobs_copied, again.blobs_present, again.blob_bytes) == (0, 5, 0)


def test_one_registry_moves_no_byte_twice(
    proxy: Proxy, make_remote: MakeRemote, profile: Profile, wheel: Path
) -> None:
    source = make_remote(proxy.host)
    publish_with_referrers(source, profile, wheel)
    puts, gets = proxy.count("PUT", "uploads"), proxy.count("GET", "blobs")
    copy(source, make_remote(proxy.host, name="mounted/here"), "demo")
    assert proxy.count("PUT", "uploads") == puts
    assert proxy.count("GET", "blobs") == gets


def test_the_real_registry_mounts_blobs(
    distribution: Distribution, make_remote: MakeRemote, profile: Profile, wheel: Path
) -> None:
    """Seen in its own log: every blob of the copy was mounted, none was sent or read."""
    source = make_remote(distribution.host)
    found = publish_with_referrers(source, profile, wheel)
    destination = make_remote(distribution.host, name="mounted/for-real")
    before = len(distribution.requests())
    copy(source, destination, "demo")
    lines = [line for line in distribution.requests()[before:] if "/blobs/" in line]
    started = [line for line in lines if '"POST ' in line]
    mounted = [line for line in started if "mount=sha256" in line and " 201 " in line]
    # The one besides asks whether we may write at all.
    assert (len(mounted), len(started)) == (5, 6)
    assert not any(f'"{method} ' in line for line in lines for method in ("PUT", "PATCH", "GET"))
    # Its own bytes: a deleted source leaves the copy whole.
    for tag in source.list_tags():
        source.untag(tag)
    delete(source, found.digest)
    assert verify(destination, "demo").ok


def test_without_referrers_by_digest_and_with_another_tag(
    tmp_path: Path, profile: Profile, wheel: Path
) -> None:
    source = Layout(tmp_path / "source")
    found = publish_with_referrers(source, profile, wheel)
    bare = Layout(tmp_path / "bare")
    done = copy(source, bare, found.digest, with_referrers=False)
    assert done.tags == (profile.digest_tag,)
    assert bare.list_tags() == (profile.digest_tag,)
    assert bare.referrers(found.digest) == ()
    copy(source, bare, "demo", tag="tested")
    assert set(bare.list_tags()) == {"tested", profile.digest_tag}


def test_a_dated_tag_is_not_moved_by_a_copy(tmp_path: Path, profile: Profile, wheel: Path) -> None:
    one, two = Layout(tmp_path / "one"), Layout(tmp_path / "two")
    publish(one, profile, [Layer(wheel, role="native")], date=DAY)
    wheel.write_bytes(b"another build")
    publish(two, profile, [Layer(wheel, role="native")], date=DAY)
    with pytest.raises(ContractError, match="never moved"):
        copy(one, two, "demo-v1.2-20261130")


def test_what_is_not_ours_is_copied_as_well(tmp_path: Path) -> None:
    one, two = Layout(tmp_path / "one"), Layout(tmp_path / "two")
    descriptor = push_artifact(one, "other").descriptor()
    assert copy(one, two, "other").descriptor == descriptor
    assert two.list_tags() == ("other",)
    with pytest.raises(NotFoundError, match="has no absent"):
        copy(one, two, "absent")


def test_wrong_bytes_do_not_pass(
    tmp_path: Path, profile: Profile, wheel: Path, proxy: Proxy, make_remote: MakeRemote
) -> None:
    source = make_remote(proxy.host)
    publish_with_referrers(source, profile, wheel)
    layout = Layout(tmp_path / "layout")
    proxy.fail("GET", "blobs/", flipped)
    with pytest.raises(VerificationError):
        copy(source, layout, "demo")
    assert layout.list_tags() == ()
    copy(source, layout, "demo")
    assert verify(layout, "demo").ok


def test_a_copy_that_fails_is_finished_by_the_next(
    tmp_path: Path, profile: Profile, wheel: Path, proxy: Proxy, make_remote: MakeRemote
) -> None:
    source = Layout(tmp_path / "layout")
    publish_with_referrers(source, profile, wheel)
    remote = make_remote(proxy.host)
    proxy.fail("PUT", "manifests", respond(507), times=100)
    with pytest.raises(NetworkError):
        copy(source, remote, "demo")
    assert remote.list_tags() == ()
    proxy.rules.clear()
    done = copy(source, remote, "demo")
    assert done.blobs_present == 2
    assert verify(remote, "demo").ok
