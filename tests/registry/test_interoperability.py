"""Tools that others wrote read what we write, and we read what they write: the same bytes."""

import datetime
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import oras.client
import pytest

from kvreg.model.oci import Manifest
from kvreg.model.profile import Profile
from registry.attach import attach
from registry.copy import copy
from registry.garbage import collect_garbage
from registry.layout import Layout
from registry.pack import pack, unpack
from registry.publish import Layer, Published, publish
from registry.remote_garbage import delete_unreferenced
from registry.store import Store
from registry.verify import verify
from tests.registry.conftest import MakeRemote
from tests.registry.samples import read
from tests.support.distribution import Distribution
from tests.support.tools import Tool

DAY = datetime.date(2026, 11, 30)


def put(store: Store, profile: Profile, wheel: Path) -> Published:
    done = publish(store, profile, [Layer(wheel, role="native")], date=DAY)
    attach(store, done.descriptor, "application/vnd.cyclonedx+json", b"{}1", "sbom.json")
    return done


class TestSkopeo:
    @pytest.fixture
    def skopeo(self, skopeo: Tool, tmp_path: Path) -> Callable[..., bytes]:
        return partial(skopeo.run, "--insecure-policy", "--tmpdir", str(tmp_path))

    def test_reads_our_layout(self, skopeo, tmp_path, profile, wheel) -> None:  # type: ignore[no-untyped-def]
        layout = Layout(tmp_path / "layout")
        done = put(layout, profile, wheel)
        raw = skopeo("inspect", "--raw", f"oci:{layout.path}:demo")
        assert raw == layout.fetch_manifest(done.descriptor.digest)

    def test_reads_our_registry(self, skopeo, distribution, make_remote, profile, wheel) -> None:  # type: ignore[no-untyped-def]
        remote = make_remote(distribution.host)
        done = put(remote, profile, wheel)
        raw = skopeo("inspect", "--raw", "--tls-verify=false", f"docker://{remote.location}:demo")
        assert raw == remote.fetch_manifest(done.descriptor.digest)

    def test_copies_our_layout_to_a_registry(  # type: ignore[no-untyped-def]
        self, skopeo, tmp_path, distribution, make_remote, profile, wheel
    ) -> None:
        layout = Layout(tmp_path / "layout")
        done = put(layout, profile, wheel)
        remote = make_remote(distribution.host)
        skopeo(
            "copy", "--dest-tls-verify=false", "--preserve-digests",
            f"oci:{layout.path}:demo", f"docker://{remote.location}:demo",
        )  # fmt: skip
        assert remote.resolve("demo") == done.descriptor
        assert verify(remote, "demo").ok

    def test_copies_our_registry_to_a_layout_that_we_read(  # type: ignore[no-untyped-def]
        self, skopeo, tmp_path, distribution, make_remote, profile, wheel
    ) -> None:
        remote = make_remote(distribution.host)
        done = put(remote, profile, wheel)
        skopeo(
            "copy", "--src-tls-verify=false", "--preserve-digests",
            f"docker://{remote.location}:demo", f"oci:{tmp_path / 'theirs'}:demo",
        )  # fmt: skip
        theirs = Layout(tmp_path / "theirs")
        assert theirs.resolve("demo") == done.descriptor
        assert verify(theirs, "demo").ok
        attach(theirs, done.descriptor, "application/x-note", b"n", "note.txt")
        assert len(theirs.referrers(done.descriptor.digest)) == 1

    def test_keeps_our_entries_when_it_writes_into_our_layout(  # type: ignore[no-untyped-def]
        self, skopeo, tmp_path, profile, wheel
    ) -> None:
        layout = Layout(tmp_path / "layout")
        done = put(layout, profile, wheel)
        skopeo("copy", f"oci:{layout.path}:demo", f"oci:{layout.path}:another")
        assert layout.resolve("another") == layout.resolve("demo") == done.descriptor
        assert len(layout.referrers(done.descriptor.digest)) == 1

    def test_reads_a_layout_that_was_cleared_up_and_one_that_was_unpacked(  # type: ignore[no-untyped-def]
        self, skopeo, tmp_path, profile, wheel
    ) -> None:
        layout = Layout(tmp_path / "layout")
        done = put(layout, profile, wheel)
        skopeo("copy", f"oci:{layout.path}:demo", f"oci:{layout.path}:theirs")
        wheel.write_bytes(b"another build")
        publish(layout, profile, [Layer(wheel, role="native")], date=DAY, dated=False)
        layout.untag("demo-v1.2-20261130")
        assert collect_garbage(layout, older_than=0).blobs == ()
        layout.untag("theirs")
        assert {item.digest for item in collect_garbage(layout, older_than=0).manifests} >= {
            done.descriptor.digest
        }
        folder = pack(layout, "demo", tmp_path / "packed").folder
        unpack(folder, Layout(tmp_path / "unpacked"))
        for root in (layout.path, tmp_path / "unpacked"):
            skopeo("copy", f"oci:{root}:demo", f"oci:{tmp_path / 'copied'}:demo")
        assert verify(Layout(tmp_path / "copied"), "demo").ok

    def test_deletes_an_artifact_and_we_collect_its_attestations(  # type: ignore[no-untyped-def]
        self, skopeo, distribution, make_remote, profile, wheel
    ) -> None:
        remote = make_remote(distribution.host)
        done = put(remote, profile, wheel)
        (sbom,) = remote.referrers(done.descriptor.digest)
        skopeo("delete", "--tls-verify=false", f"docker://{remote.location}:demo")
        assert remote.list_tags() == ()
        found = delete_unreferenced(remote, wait=0)
        assert [item.digest for item in found.manifests] == [sbom.digest]
        assert remote.fallback_tags() == ()

    def test_sees_a_tag_go_alone(  # type: ignore[no-untyped-def]
        self, skopeo, distribution, make_remote, profile, wheel
    ) -> None:
        remote = make_remote(distribution.host)
        done = put(remote, profile, wheel)
        remote.untag("demo")
        listed = skopeo("list-tags", "--tls-verify=false", f"docker://{remote.location}")
        assert "demo" not in json.loads(listed)["Tags"]
        dated = f"docker://{remote.location}:demo-v1.2-20261130"
        raw = skopeo("inspect", "--raw", "--tls-verify=false", dated)
        assert raw == remote.fetch_manifest(done.descriptor.digest)


class TestOrasPy:
    def client(self, distribution: Distribution) -> oras.client.OrasClient:
        return oras.client.OrasClient(hostname=distribution.host, insecure=True)

    def test_pulls_what_we_publish(
        self,
        tmp_path: Path,
        distribution: Distribution,
        make_remote: MakeRemote,
        profile: Profile,
        wheel: Path,
    ) -> None:
        remote = make_remote(distribution.host)
        put(remote, profile, wheel)
        (pulled,) = self.client(distribution).pull(
            target=f"{remote.location}:demo", outdir=str(tmp_path / "out")
        )
        assert Path(pulled).name == wheel.name
        assert Path(pulled).read_bytes() == wheel.read_bytes()

    def test_pushes_what_we_read_and_copy(
        self, tmp_path: Path, distribution: Distribution, make_remote: MakeRemote, wheel: Path
    ) -> None:
        remote = make_remote(distribution.host)
        self.client(distribution).push(
            target=f"{remote.location}:theirs",
            files=[f"{wheel}:application/x-file"],
            disable_path_validation=True,
            quiet=True,
        )
        found = remote.resolve("theirs")
        assert found is not None
        (layer,) = Manifest.parse(remote.fetch_manifest(found.digest)).layers
        assert (layer.title, read(remote, layer)) == (wheel.name, wheel.read_bytes())
        layout = Layout(tmp_path / "layout")
        assert copy(remote, layout, "theirs").descriptor == found
        assert verify(layout, "theirs").ok

    def test_its_request_can_still_be_used_without_its_retries(self) -> None:
        """What `registry.transport` builds on; a new version of oras-py must keep it."""
        from registry.oras_base import request_once

        assert request_once.__code__.co_varnames[:7] == (
            "self", "url", "method", "data", "headers", "json", "stream",
        )  # fmt: skip

    def test_importing_it_is_quick_and_takes_nobody_a_check(self) -> None:
        script = (
            "import sys, registry.remote\n"
            "assert 'jsonschema' not in sys.modules\n"
            "import jsonschema, oras.provider\n"
            "oras.provider.jsonschema.validate({}, {'type': 'object'})\n"
            "try: oras.provider.jsonschema.validate([], {'type': 'object'})\n"
            "except jsonschema.ValidationError: pass\n"
            "else: raise AssertionError\n"
        )
        root = Path(__file__).parents[2]
        subprocess.run([sys.executable, "-c", script], check=True, cwd=root, timeout=60)
