"""The ORAS command line and we read, list and copy each other's artifacts: the same bytes.

Each test runs on a registry without the referrers API and on one that has it.
"""

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvreg.model.oci import Descriptor, Manifest
from kvreg.model.profile import Profile
from registry.attach import attach
from registry.copy import copy
from registry.layout import Layout
from registry.publish import Layer, publish
from registry.remote import Remote
from registry.store import Store
from registry.verify import verify
from tests.registry.conftest import MakeRemote
from tests.registry.samples import read
from tests.support.tools import Tool

DAY = datetime.date(2026, 11, 30)
SBOM = "application/vnd.cyclonedx+json"

Run = Callable[..., bytes]


@pytest.fixture
def run(oras: Tool, tmp_path: Path) -> Run:
    """Runs oras in a folder of its own, without anybody's credentials."""
    folder = tmp_path / "oras"
    folder.mkdir()

    def run(*arguments: str) -> bytes:
        return oras.run(*arguments, cwd=folder)

    return run


@pytest.fixture(params=["tag schema", "referrers API"])
def remote(request: pytest.FixtureRequest, make_remote: MakeRemote) -> Remote:
    if request.param == "tag schema":
        return make_remote(request.getfixturevalue("distribution").host)
    proxy = request.getfixturevalue("proxy")
    proxy.referrers_api = True
    return make_remote(proxy.host)


def put(store: Store, profile: Profile, wheel: Path) -> tuple[Descriptor, Descriptor]:
    """An artifact and the SBOM that is attached to it."""
    done = publish(store, profile, [Layer(wheel, role="native")], date=DAY)
    return done.descriptor, attach(store, done.descriptor, SBOM, b"{}1", "sbom.json")


def listed(answer: bytes) -> list[tuple[str, str]]:
    """Digest and artifact type of what ``oras discover`` prints."""
    table: dict[str, Any] = json.loads(answer)
    found = table.get("referrers") or table.get("manifests") or []
    return [(item["digest"], item["artifactType"]) for item in found]


def test_it_pulls_what_we_publish(
    run: Run, remote: Remote, profile: Profile, wheel: Path, tmp_path: Path
) -> None:
    put(remote, profile, wheel)
    run("pull", "--plain-http", "--output", str(tmp_path / "out"), f"{remote.location}:demo")
    assert (tmp_path / "out" / wheel.name).read_bytes() == wheel.read_bytes()
    raw = run("manifest", "fetch", "--plain-http", f"{remote.location}:demo")
    found = remote.resolve("demo")
    assert found is not None
    assert raw == remote.fetch_manifest(found.digest)


def test_it_discovers_what_we_attach(
    run: Run, remote: Remote, profile: Profile, wheel: Path, tmp_path: Path
) -> None:
    _, sbom = put(remote, profile, wheel)
    discover = ("discover", "--plain-http", "--format", "json")
    assert listed(run(*discover, f"{remote.location}:demo")) == [(sbom.digest, SBOM)]
    run("pull", "--plain-http", "--output", str(tmp_path), f"{remote.location}@{sbom.digest}")
    assert (tmp_path / "sbom.json").read_bytes() == b"{}1"


def test_it_discovers_in_our_layout(
    run: Run, profile: Profile, wheel: Path, tmp_path: Path
) -> None:
    layout = Layout(tmp_path / "layout")
    _, sbom = put(layout, profile, wheel)
    answer = run("discover", "--oci-layout", "--format", "json", f"{layout.path}:demo")
    assert listed(answer) == [(sbom.digest, SBOM)]


def test_it_copies_ours_with_referrers(
    run: Run, remote: Remote, profile: Profile, wheel: Path, tmp_path: Path
) -> None:
    """From our layout to a registry, and from there to a layout that we read."""
    layout = Layout(tmp_path / "layout")
    artifact, sbom = put(layout, profile, wheel)
    run(
        "cp", "--recursive", "--from-oci-layout", "--to-plain-http",
        f"{layout.path}:demo", f"{remote.location}:demo",
    )  # fmt: skip
    run(
        "cp", "--recursive", "--from-plain-http", "--to-oci-layout",
        f"{remote.location}:demo", f"{tmp_path / 'theirs'}:demo",
    )  # fmt: skip
    for store in (remote, Layout(tmp_path / "theirs")):
        assert store.resolve("demo") == artifact
        assert [item.digest for item in store.referrers(artifact.digest)] == [sbom.digest]
        assert verify(store, "demo").ok


def test_we_read_and_copy_what_it_pushes_and_attaches(
    run: Run, remote: Remote, wheel: Path, tmp_path: Path
) -> None:
    (tmp_path / "oras" / "demo.whl").write_bytes(wheel.read_bytes())
    (tmp_path / "oras" / "note.txt").write_text("a note")
    target = f"{remote.location}:theirs"
    run("push", "--plain-http", "--artifact-type", "application/x-demo", target, "demo.whl")
    kind = "application/x-note"
    run("attach", "--plain-http", "--artifact-type", kind, target, "note.txt:text/plain")
    found = remote.resolve("theirs")
    assert found is not None
    manifest = Manifest.parse(remote.fetch_manifest(found.digest))
    assert manifest.artifact_type == "application/x-demo"
    assert [(layer.title, read(remote, layer)) for layer in manifest.layers] == [
        ("demo.whl", wheel.read_bytes())
    ]
    (note,) = remote.referrers(found.digest)
    assert note.artifact_type == kind
    layout = Layout(tmp_path / "layout")
    done = copy(remote, layout, "theirs")
    assert (done.descriptor, done.referrers) == (found, 1)
    assert verify(layout, "theirs").ok
    assert [item.digest for item in layout.referrers(found.digest)] == [note.digest]


def test_both_attach_to_the_same_artifact(
    run: Run, remote: Remote, profile: Profile, wheel: Path, tmp_path: Path
) -> None:
    """Neither drops the other's entry from the list of referrers."""
    artifact, sbom = put(remote, profile, wheel)
    (tmp_path / "oras" / "note.txt").write_text("a note")
    target = f"{remote.location}:demo"
    run("attach", "--plain-http", "--artifact-type", "a/note", target, "note.txt:text/plain")
    ours = attach(remote, artifact, "application/x-record", b"r", "record.json")
    listing = remote.referrers(artifact.digest)
    assert {item.artifact_type for item in listing} == {SBOM, "a/note", "application/x-record"}
    answer = run("discover", "--plain-http", "--format", "json", target)
    assert {digest for digest, _ in listed(answer)} == {item.digest for item in listing}
    assert {sbom.digest, ours.digest} < {item.digest for item in listing}
