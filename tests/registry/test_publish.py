"""Publishing: the artifact's form, the same bytes everywhere, tags that stay."""

import datetime
import os
from pathlib import Path

import pytest

from kvreg.errors import ContractError, KvregError, NotFoundError, UsageError, VerificationError
from kvreg.model.oci import (
    MEDIA_TYPE_OVERLAY_LOCK,
    MEDIA_TYPE_PROFILE,
    MEDIA_TYPE_RUNTIME,
    MEDIA_TYPE_WHEEL,
    Descriptor,
    Manifest,
)
from kvreg.model.profile import Profile
from kvreg.model.tag import is_fixed_tag
from registry.layout import Layout
from registry.outgoing import Upload
from registry.publish import Layer, ToolchainUse, publish
from registry.store import open_store
from registry.stream import hash_file
from tests.registry.conftest import MakeRemote
from tests.registry.proxy import Proxy
from tests.registry.samples import read
from tests.support.distribution import Distribution

DAY = datetime.date(2026, 11, 30)
TOOLCHAIN = ToolchainUse("cuda-12.4-debian12", "sha256:" + "ab" * 32, "12.4.131")


def test_the_artifact(tmp_path: Path, profile: Profile, wheel: Path) -> None:
    layout = Layout(tmp_path / "layout")
    lock = tmp_path / "overlay.lock"
    lock.write_text("demo==1 --hash=sha256:00\n")
    layers = [Layer(wheel, role="native"), Layer(lock, MEDIA_TYPE_OVERLAY_LOCK)]
    done = publish(layout, profile, layers, {"extra": "x"}, DAY, toolchain=TOOLCHAIN)
    assert done.tags == ("demo", "demo-v1.2-20261130", profile.digest_tag)
    assert layout.list_tags() == tuple(sorted(done.tags))
    assert {layout.resolve(tag) for tag in done.tags} == {done.descriptor}
    manifest = Manifest.parse(layout.fetch_manifest(done.descriptor.digest))
    assert manifest.artifact_type == MEDIA_TYPE_RUNTIME
    assert (manifest.config.media_type, manifest.config.digest) == (
        MEDIA_TYPE_PROFILE,
        profile.digest,
    )
    assert read(layout, manifest.config) == profile.canonical()
    native, overlay = manifest.layers
    assert (native.media_type, native.title, native.role) == (
        MEDIA_TYPE_WHEEL,
        wheel.name,
        "native",
    )
    assert (overlay.media_type, overlay.title, overlay.role) == (
        MEDIA_TYPE_OVERLAY_LOCK,
        "overlay.lock",
        None,
    )
    assert read(layout, native) == wheel.read_bytes()
    assert dict(manifest.annotations) == {
        "org.opencontainers.image.created": "2026-03-31T00:00:00Z",
        "org.opencontainers.image.version": "1.2+cu128.sm75",
        "org.opencontainers.image.revision": "a26e8dc7ff2111a005144d775ecf9cebf56c45b2",
        "vnd.kvreg.profile": "demo",
        "vnd.kvreg.toolchain.name": "cuda-12.4-debian12",
        "vnd.kvreg.toolchain.image": "sha256:" + "ab" * 32,
        "vnd.kvreg.toolchain.cuda": "12.4.131",
        "extra": "x",
    }


def test_the_same_digest_in_every_store_on_every_day(
    tmp_path: Path,
    profile: Profile,
    wheel: Path,
    distribution: Distribution,
    make_remote: MakeRemote,
) -> None:
    layers = [Layer(wheel, role="native")]
    found = set()
    for day in (DAY, DAY + datetime.timedelta(1)):
        for store in (Layout(tmp_path / "layout"), make_remote(distribution.host)):
            os.utime(wheel, (day.day, day.day))
            done = publish(store, profile, layers, date=day, toolchain=TOOLCHAIN)
            found.add(done.descriptor)
            found.add(store.resolve(profile.digest_tag))
    assert len(found) == 1


def test_publishing_twice_sends_nothing_twice(
    proxy: Proxy, make_remote: MakeRemote, profile: Profile, wheel: Path
) -> None:
    layers = [Layer(wheel, role="native")]
    first = publish(make_remote(proxy.host), profile, layers, date=DAY)
    assert first.uploaded_bytes == wheel.stat().st_size + len(profile.canonical())
    puts = proxy.count("PUT", "uploads")
    again = publish(make_remote(proxy.host), profile, layers, date=DAY)
    assert (again.descriptor, again.uploaded_bytes) == (first.descriptor, 0)
    assert proxy.count("PUT", "uploads") == puts


def test_the_dated_tag_is_never_moved(
    proxy: Proxy, make_remote: MakeRemote, profile: Profile, wheel: Path, tmp_path: Path
) -> None:
    for store in (Layout(tmp_path / "layout"), make_remote(proxy.host)):
        first = publish(store, profile, [Layer(wheel, role="native")], date=DAY)
        other = tmp_path / "other" / wheel.name
        other.parent.mkdir(exist_ok=True)
        other.write_bytes(b"another build")
        sent = proxy.count("PUT")
        with pytest.raises(ContractError, match="never moved") as caught:
            publish(store, profile, [Layer(other, role="native")], date=DAY)
        assert caught.value.found == first.descriptor.digest
        assert caught.value.expected not in (None, first.descriptor.digest)
        assert proxy.count("PUT") == sent, "refused before anything was sent"
        assert store.resolve("demo") == first.descriptor
        tomorrow = DAY + datetime.timedelta(1)
        second = publish(store, profile, [Layer(other, role="native")], date=tomorrow)
        assert store.resolve("demo") == store.resolve(profile.digest_tag) == second.descriptor
        assert store.resolve("demo-v1.2-20261130") == first.descriptor


def test_today_is_the_default(tmp_path: Path, profile: Profile, wheel: Path) -> None:
    done = publish(Layout(tmp_path / "layout"), profile, [Layer(wheel, role="native")])
    assert is_fixed_tag(done.tags[1])
    assert done.tags[1].startswith("demo-v1.2-20")


def test_layers_that_cannot_be_meant(tmp_path: Path, profile: Profile, wheel: Path) -> None:
    layout = Layout(tmp_path / "layout")
    twin = tmp_path / "twin" / wheel.name
    twin.parent.mkdir()
    twin.write_bytes(b"x")
    for layers, error in (
        ([], UsageError),
        ([Layer(wheel)], UsageError),
        ([Layer(wheel, role="main")], UsageError),
        ([Layer(tmp_path / "absent.whl", role="native")], NotFoundError),
        ([Layer(wheel, role="native"), Layer(twin, role="overlay")], UsageError),
    ):
        with pytest.raises(error):
            publish(layout, profile, layers, date=DAY)
    assert not layout.path.exists()


def test_a_wheel_that_changes_after_it_was_hashed_is_not_published(
    tmp_path: Path, wheel: Path, distribution: Distribution, repository: str
) -> None:
    hashed = hash_file(wheel)
    descriptor = Descriptor("application/x-test", hashed.digest, hashed.size)
    with open_store(f"{distribution.host}/{repository}") as store:
        data = bytearray(wheel.read_bytes())
        data[-1] ^= 1
        wheel.write_bytes(data)
        with pytest.raises(KvregError):
            store.push_blob(hashed, descriptor)
        assert not store.has_blob(descriptor)


def test_the_bytes_of_a_file_are_hashed_once_and_sent_as_they_are(
    wheel: Path, distribution: Distribution, repository: str
) -> None:
    hashed = hash_file(wheel)
    descriptor = Descriptor("application/x-test", hashed.digest, hashed.size)
    with open_store(f"{distribution.host}/{repository}") as store:
        assert store.push_blob(hashed, descriptor)
        assert b"".join(store.read_blob(descriptor)) == wheel.read_bytes()


def test_a_touched_file_is_found_before_the_registry_hears_of_it(wheel: Path) -> None:
    hashed = hash_file(wheel)
    descriptor = Descriptor("application/x-test", hashed.digest, hashed.size)
    with Upload(hashed, descriptor) as upload:
        list(upload.window(0, hashed.size))
        upload.check()
        os.utime(wheel, ns=(1, 1))
        with pytest.raises(VerificationError, match="not the blob"):
            upload.check()
