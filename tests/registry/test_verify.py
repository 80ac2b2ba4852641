"""Verification reports every wrong part, in layouts and registries."""

import datetime
from pathlib import Path

import pytest

from kvreg.errors import NetworkError, NotFoundError
from kvreg.model.oci import EMPTY_BLOB, MEDIA_TYPE_RUNTIME, Manifest, empty_descriptor
from kvreg.model.profile import Profile
from registry.attach import attach
from registry.layout import Layout
from registry.publish import Layer, publish
from registry.verify import verify
from tests.registry.conftest import MakeRemote
from tests.registry.proxy import Proxy, flipped, reset
from tests.registry.samples import blob
from tests.support.distribution import Distribution


def test_every_wrong_part_is_named(tmp_path: Path, profile: Profile, wheel: Path) -> None:
    layout = Layout(tmp_path / "layout")
    done = publish(layout, profile, [Layer(wheel, role="native")], date=datetime.date(2026, 1, 1))
    sbom = attach(layout, done.descriptor, "application/x-sbom", b"{}1", "sbom.json")
    report = verify(layout, "demo")
    assert report.ok
    assert [item.part for item in report.judgements] == [
        "manifest", "config", "layer", "referrer", "config", "layer",
    ]  # fmt: skip
    expected = wheel.stat().st_size + len(profile.canonical()) + len(EMPTY_BLOB) + 3
    assert report.bytes_read == expected + done.descriptor.size + sbom.size

    files = layout.path / "blobs" / "sha256"
    by_part = {item.part: item.descriptor.digest.removeprefix("sha256:") for item in
               report.judgements[:3]}  # fmt: skip
    (files / by_part["layer"]).write_bytes(b"\0" * wheel.stat().st_size)
    (files / by_part["config"]).unlink()
    report = verify(layout, "demo")
    assert not report.ok
    wrong = {item.part: item.status for item in report.judgements if item.status != "ok"}
    assert wrong == {"layer": "corrupt", "config": "missing"}
    assert report.to_dict()["ok"] is False
    assert verify(layout, "demo", with_referrers=False).judgements[-1].part == "layer"


def test_a_corrupt_blob_of_a_registry(
    distribution: Distribution, make_remote: MakeRemote, profile: Profile, wheel: Path
) -> None:
    remote = make_remote(distribution.host)
    done = publish(remote, profile, [Layer(wheel, role="native")])
    layer = Manifest.parse(remote.fetch_manifest(done.descriptor.digest)).layers[0]
    digest = layer.digest.removeprefix("sha256:")
    (stored,) = distribution.root.rglob(f"blobs/sha256/{digest[:2]}/{digest}/data")
    before = stored.read_bytes()
    stored.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    try:
        report = verify(remote, "demo")
    finally:
        stored.write_bytes(before)
    (wrong,) = (item for item in report.judgements if item.status != "ok")
    assert (wrong.status, wrong.descriptor.title) == ("corrupt", wheel.name)
    assert layer.digest in wrong.reason


def test_a_config_that_is_no_profile(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    data, layer = blob(10)
    layout.push_blob(EMPTY_BLOB, empty_descriptor())
    layout.push_blob(data, layer)
    manifest = Manifest(empty_descriptor(), (layer,), MEDIA_TYPE_RUNTIME)
    layout.push_manifest(manifest.to_bytes(), tag="one")
    (wrong,) = (item for item in verify(layout, "one").judgements if item.status != "ok")
    assert (wrong.part, wrong.status) == ("config", "corrupt")
    assert "vnd.kvreg.profile" in wrong.reason


def test_a_network_fault_is_not_a_judgement(
    proxy: Proxy, make_remote: MakeRemote, profile: Profile, wheel: Path
) -> None:
    remote = make_remote(proxy.host)
    publish(remote, profile, [Layer(wheel, role="native")])
    proxy.fail("GET", "blobs", reset, times=100)
    with pytest.raises(NetworkError):
        verify(remote, "demo")
    proxy.rules.clear()
    proxy.fail("GET", "blobs", flipped)
    assert not verify(remote, "demo").ok
    with pytest.raises(NotFoundError):
        verify(remote, "absent")
