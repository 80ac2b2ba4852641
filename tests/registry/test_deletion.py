"""Tags and deletion in every kind of store, and what a registry lets one clean up."""

import subprocess
from pathlib import Path

import pytest

from kvreg.errors import ContractError, NetworkError, NotFoundError, UsageError
from kvreg.model.oci import Descriptor, Index
from kvreg.model.profile import Profile
from kvreg.model.tag import digest_tag
from registry.attach import attach
from registry.deletion import delete
from registry.describe import describe
from registry.inventory import inventory
from registry.layout import Layout
from registry.naming import name
from registry.publish import Layer, publish
from registry.referrers import fallback_tag
from registry.remote import Remote
from registry.remote_garbage import delete_unreferenced, find_unreferenced
from registry.store import Store, open_store
from registry.verify import verify
from tests.registry.conftest import MakeRemote
from tests.registry.proxy import Proxy, applied_then_reset, respond
from tests.registry.samples import push_artifact
from tests.support.distribution import Distribution, running_distribution

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


def test_a_tag_goes_alone(store: Store) -> None:
    found = push_artifact(store, "one").descriptor()
    store.tag(found, "two")
    store.untag("one")
    assert store.list_tags() == ("two",)
    assert store.resolve("one") is None
    assert store.resolve(found.digest) == store.resolve("two") == found
    store.untag("two")
    assert store.list_tags() == ()
    assert store.resolve(found.digest) == found
    with pytest.raises(NotFoundError):
        store.untag("two")


def test_a_manifest_goes_with_its_place_among_the_referrers(store: Store) -> None:
    subject = push_artifact(store, "one").descriptor()
    first = attach(store, subject, "application/x-a", b"a", "a")
    second = attach(store, subject, "application/x-b", b"b", "b")
    store.delete(first.digest)
    assert store.resolve(first.digest) is None
    if isinstance(store, Layout) or store._has_referrers_api is False:  # type: ignore[attr-defined]
        # What a registry with the API lists is its own affair.
        assert [item.digest for item in store.referrers(subject.digest)] == [second.digest]
        store.delete(second.digest)
        assert store.referrers(subject.digest) == ()
        assert store.resolve(fallback_tag(subject.digest)) is None
    assert store.resolve("one") == subject
    with pytest.raises(NotFoundError):
        store.delete(ABSENT)


class TestDeleting:
    def test_a_digest_with_everything_attached(self, store: Store) -> None:
        found = push_artifact(store, "one").descriptor()
        other = push_artifact(store, "two", seed=2).descriptor()
        sbom = attach(store, found, "application/x-sbom", b"s", "sbom.json")
        signature = attach(store, sbom, "application/x-signature", b"g", "signature")
        with pytest.raises(ContractError, match="still has tags") as caught:
            delete(store, found.digest)
        assert caught.value.found == "one"
        delete(store, "one")
        plan = delete(store, found.digest, dry_run=True)
        assert plan.manifests == (signature.digest, sbom.digest, found.digest)
        assert store.resolve(found.digest) == found
        assert delete(store, found.digest).manifests == plan.manifests
        for digest in plan.manifests:
            assert store.resolve(digest) is None
        assert store.list_tags() == ("two",)
        assert verify(store, "two").ok
        assert store.resolve(other.digest) == other

    def test_a_tagged_attestation_and_a_part_of_an_index(self, store: Store) -> None:
        found = push_artifact(store).descriptor()
        store.tag(attach(store, found, "application/x-sbom", b"s", "sbom.json"), "sbom")
        with pytest.raises(ContractError, match="still has tags"):
            delete(store, found.digest)
        part = push_artifact(store, seed=2).descriptor()
        store.push_manifest(Index((part,)).to_bytes(), tag="many")
        with pytest.raises(ContractError, match="part of another manifest"):
            delete(store, part.digest)

    def test_an_artifact_with_a_signature_of_cosigns(self, store: Store) -> None:
        found = push_artifact(store, "one").descriptor()
        signature = push_artifact(store, f"{fallback_tag(found.digest)}.sig", seed=3).descriptor()
        assert [(item.digest, item.attestations) for item in inventory(store)] == [
            (found.digest, 1)
        ]
        assert describe(store, "one").attestations[0].descriptor == signature
        delete(store, "one")
        assert delete(store, found.digest).manifests == (signature.digest, found.digest)
        assert store.list_tags() == ()

    @pytest.mark.parametrize("target", ["absent", ABSENT])
    @pytest.mark.parametrize("dry_run", [True, False])
    def test_what_is_absent(self, store: Store, target: str, dry_run: bool) -> None:
        push_artifact(store, "one")
        if target == ABSENT and dry_run:
            return
        with pytest.raises(NotFoundError):
            delete(store, target, dry_run=dry_run)


class TestNaming:
    def test_a_dated_tag_is_never_moved(self, store: Store) -> None:
        first = push_artifact(store, "one").descriptor()
        push_artifact(store, "two", seed=2)
        dated = "demo-v1.2-20261130"
        assert name(store, "one", dated) == name(store, first.digest, dated) == first
        with pytest.raises(ContractError, match="never moved"):
            name(store, "two", dated)
        name(store, "two", "one")
        assert store.resolve("one") != first
        assert store.resolve(dated) == first

    def test_names_that_mean_something_else(
        self, tmp_path: Path, profile: Profile, wheel: Path
    ) -> None:
        layout = Layout(tmp_path / "layout")
        publish(layout, profile, [Layer(wheel, role="native")])
        push_artifact(layout, "other")
        name(layout, "demo", profile.digest_tag)
        with pytest.raises(ContractError, match="a certain profile"):
            name(layout, "demo", digest_tag(ABSENT))
        with pytest.raises(ContractError, match="a certain profile"):
            name(layout, "other", profile.digest_tag)
        with pytest.raises(UsageError, match="hold attestations"):
            name(layout, "demo", fallback_tag(ABSENT))
        with pytest.raises(UsageError, match="hold attestations"):
            name(layout, "demo", f"{fallback_tag(ABSENT)}.sig")
        with pytest.raises(NotFoundError, match="has no absent"):
            name(layout, "absent", "new")


class TestRegistriesThatDoNotDelete:
    def test_it_is_said_and_the_tag_stays(self, proxy: Proxy, make_remote: MakeRemote) -> None:
        remote = make_remote(proxy.host)
        found = push_artifact(remote, "one").descriptor()
        proxy.fail("DELETE", "/manifests/", respond(405), times=100)
        with pytest.raises(NetworkError, match="does not delete"):
            remote.untag("one")
        with pytest.raises(NetworkError, match="does not delete"):
            remote.delete(found.digest)
        assert remote.resolve("one") == found

    def test_a_placeholder_that_cannot_be_deleted_gives_the_tag_back(
        self, proxy: Proxy, make_remote: MakeRemote
    ) -> None:
        remote = make_remote(proxy.host)
        found = push_artifact(remote, "one").descriptor()
        # By tag, by digest on trial, and then for good.
        proxy.fail("DELETE", "/manifests/sha256:", respond(403), times=1, skip=1)
        with pytest.raises(NetworkError):
            remote.untag("one")
        assert remote.resolve("one") == found


class TestUnreferenced:
    """The real registry has no referrers API: lists under tags lead to what nothing else does."""

    @pytest.fixture
    def remote(self, distribution: Distribution, make_remote: MakeRemote) -> Remote:
        return make_remote(distribution.host)

    def fill(self, remote: Remote) -> tuple[list[Descriptor], list[Descriptor]]:
        """An artifact with attestations whose tag moves to another one with attestations."""
        sides = []
        for seed in (1, 2):
            found = push_artifact(remote, "moving", seed=seed).descriptor()
            sbom = attach(remote, found, "application/x-sbom", b"%d" % seed, "sbom.json")
            signature = attach(remote, sbom, "application/x-signature", b"%d" % seed, "s")
            sides.append([found, sbom, signature])
        return sides[0], sides[1]

    def test_an_artifact_without_tag_goes_with_its_attestations(self, remote: Remote) -> None:
        old, new = self.fill(remote)
        plan = find_unreferenced(remote)
        assert [item.digest for item in plan.manifests] == [item.digest for item in reversed(old)]
        assert set(plan.lists) == {fallback_tag(item.digest) for item in old[:2]}
        assert remote.resolve(old[0].digest) is not None
        done = delete_unreferenced(remote, wait=7)
        assert 7 in remote.slept  # type: ignore[attr-defined]
        assert (done.deleted, done.manifests) == (True, plan.manifests)
        for item in old:
            assert remote.resolve(item.digest) is None
        assert remote.list_tags() == ("moving",)
        assert len(remote.fallback_tags()) == 2
        found = verify(remote, "moving")
        assert found.ok
        assert {item.digest for item in new} <= {j.descriptor.digest for j in found.judgements}
        assert find_unreferenced(remote).empty

    def test_what_was_named_at_the_second_look_stays(self, remote: Remote) -> None:
        old, _ = self.fill(remote)
        remote._client.sleep = lambda seconds: remote.tag(old[0], "late") if seconds == 9 else None
        done = delete_unreferenced(remote, wait=9)
        assert done.empty
        assert verify(remote, "late").ok

    def test_entries_that_name_what_is_gone_are_taken_out(self, remote: Remote) -> None:
        subject = push_artifact(remote, "one").descriptor()
        gone = attach(remote, subject, "application/x-a", b"a", "a")
        kept = attach(remote, subject, "application/x-b", b"b", "b")
        remote.delete_manifest(gone.digest)
        assert not verify(remote, "one").ok
        assert find_unreferenced(remote).dangling == ((subject.digest, gone.digest),)
        delete_unreferenced(remote, wait=0)
        assert [item.digest for item in remote.referrers(subject.digest)] == [kept.digest]
        assert verify(remote, "one").ok

    def test_one_that_was_stopped_is_finished_by_the_next(
        self, proxy: Proxy, make_remote: MakeRemote
    ) -> None:
        """After each deletion in turn the connection is lost for good."""
        for survived in range(5):
            remote = make_remote(proxy.host, name=f"stopped/at-{survived}")
            old, new = self.fill(remote)
            proxy.fail("DELETE", "manifests", applied_then_reset, times=100, skip=survived)
            with pytest.raises(NetworkError):
                delete_unreferenced(remote, wait=0)
            proxy.rules.clear()
            delete_unreferenced(remote, wait=0)
            for item in old:
                assert remote.resolve(item.digest) is None
            assert remote.resolve("moving") == new[0]
            assert verify(remote, "moving").ok
            assert find_unreferenced(remote).empty

    def test_signatures_of_cosigns_go_with_what_was_signed(self, remote: Remote) -> None:
        old, new = self.fill(remote)
        tags = [f"{fallback_tag(digest)}.sig" for digest in (old[0].digest, new[0].digest, ABSENT)]
        for number, tag in enumerate(tags):
            push_artifact(remote, tag, seed=20 + number)
        delete_unreferenced(remote, wait=0)
        # One whose subject is elsewhere is nobody's garbage.
        assert set(remote.list_tags()) == {"moving", *tags[1:]}

    def test_parts_of_an_index(self, remote: Remote) -> None:
        shared = push_artifact(remote, seed=3).descriptor()
        alone = push_artifact(remote, seed=4).descriptor()
        remote.push_manifest(Index((shared,)).to_bytes(), tag="kept")
        raw = Index((shared, alone)).to_bytes()
        index = remote.push_manifest(raw)
        attach(remote, index, "application/x-sbom", b"s", "sbom.json")
        done = delete_unreferenced(remote, wait=0)
        assert remote.resolve(shared.digest) == shared
        assert remote.resolve(alone.digest) is None
        assert remote.resolve(index.digest) is None
        assert len(done.manifests) == 3


class TestTheRegistrysOwnCollection:
    """What Distribution's ``garbage-collect`` makes of a repository that was cleaned up."""

    def collect(self, folder: Path, *options: str) -> bool:
        """Whether everything that is tagged is whole after it, attestations included."""
        with running_distribution(folder) as registry, open_store(f"{registry.host}/a/b") as remote:
            for seed in (1, 2):
                found = push_artifact(remote, "moving", seed=seed, size=200_000).descriptor()
                attach(remote, found, "application/x-sbom", b"%d" % seed, "sbom.json")
            assert isinstance(remote, Remote)
            assert len(delete_unreferenced(remote, wait=0).manifests) == 2
        program = registry.process.args[0]  # type: ignore[index]
        command = [program, "garbage-collect", *options, str(folder / "config.yml")]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        size = sum(path.stat().st_size for path in registry.root.rglob("data"))
        assert size < 300_000, "the bytes of the artifact that was deleted are free"
        with running_distribution(folder) as registry, open_store(f"{registry.host}/a/b") as remote:
            return verify(remote, "moving").ok

    def test_it_frees_what_we_deleted_and_nothing_else(self, tmp_path: Path) -> None:
        assert self.collect(tmp_path)

    def test_with_delete_untagged_it_takes_attestations_away(self, tmp_path: Path) -> None:
        """Why the documentation warns of that option: a fact of version 2.8, not a wish."""
        assert not self.collect(tmp_path, "--delete-untagged")
