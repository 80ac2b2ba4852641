"""The commands about a whole store, names, packing and the index, as a user runs them."""

import json
import os
import time
from pathlib import Path

import pytest

from kvreg.reference import LayoutReference, parse_reference
from registry.attach import attach
from registry.layout import Layout
from tests.kvreg.profiles import write_profile
from tests.registry.samples import push_artifact
from tests.registry.test_cli import run, run_json
from tests.support.distribution import Distribution
from tests.support.wheels import write_wheel

DATED = "demo-v1.2-20261130"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A layout with the runtime ``demo``, its SBOM with a signature, and something untagged."""
    store = f"oci-layout:{tmp_path}/layout"
    folder = write_profile(tmp_path / "for-push")
    wheel = write_wheel(tmp_path)
    result = run("push", store, "--profile", folder, "--wheel", wheel, "--date", "2026-11-30")
    assert result.exit_code == 0, result.output
    parsed = parse_reference(store)
    assert isinstance(parsed, LayoutReference)
    layout = Layout(parsed.path)
    found = layout.resolve("demo")
    assert found is not None
    sbom = attach(layout, found, "application/vnd.cyclonedx+json", b"{}", "sbom.cdx.json")
    attach(layout, sbom, "application/x-signature", b"sig", "sbom.sig")
    push_artifact(layout, seed=9)
    return layout


def test_ls(layout: Layout, distribution: Distribution, repository: str) -> None:
    text = run("ls", layout.location).output
    assert "demo: demo-pkg 1.2+cu128.sm75" in text
    assert f"demo, {DATED}, p-" in text
    assert "1 attestation\n" in text
    assert "(no tag)" in text
    runtime, other = run_json("ls", layout.location)
    assert (runtime["tags"][:2], runtime["attestations"]) == (["demo", DATED], 1)
    assert (other["tags"], other["artifactType"]) == ([], "application/x-test")
    remote = f"{distribution.host}/{repository}"
    assert run("ls", remote).output == "nothing\n"
    run("copy", f"{layout.location}:demo", remote)
    (copied,) = run_json("ls", remote)
    assert copied["digest"] == runtime["digest"]
    assert copied["attestations"] == 1
    assert run("ls", f"{layout.location}:demo").exit_code == 2


def test_show(layout: Layout) -> None:
    page = run("show", f"{layout.location}:demo").output
    for part in (
        "profile   demo sha256:",
        "runtime   demo-pkg 1.2+cu128.sm75",
        "upstream  v1.2 a26e8dc",
        ".whl (native)  ",
        "glibc                   >=2.35",
        "SBOM (CycloneDX)  sha256:",
        "sbom.cdx.json  2 B  sha256:",
        "  application/x-signature  sha256:",
    ):
        assert part in page, page
    (sbom,) = run_json("show", f"{layout.location}:demo")["referrers"]
    assert sbom["files"][0]["size"] == 2
    assert sbom["referrers"][0]["artifactType"] == "application/x-signature"
    about = run("show", f"{layout.location}@{sbom['digest']}").output
    assert "about     sha256:" in about


def test_show_says_which_attestation_is_damaged(layout: Layout) -> None:
    (sbom,) = run_json("show", f"{layout.location}:demo")["referrers"]
    found = Layout(layout.path)
    listed = found.referrers(run_json("resolve", f"{layout.location}:demo")["digest"])
    assert listed[0].digest == sbom["digest"]
    # A registry may list what is gone.
    from registry.describe import describe

    class Forgetful(Layout):
        def fetch_manifest(self, digest: str) -> bytes:
            raw = super().fetch_manifest(digest)
            return raw.replace(b"cyclonedx", b"cyclonedy") if digest == sbom["digest"] else raw

        def referrers(self, digest, artifact_type=None):  # type: ignore[no-untyped-def]
            return listed

    page = describe(Forgetful(layout.path), "demo")
    assert page.attestations[0].problem is None
    (layout.path / "blobs/sha256" / sbom["digest"][7:]).unlink()
    page = describe(Forgetful(layout.path), "demo")
    assert page.attestations[0].problem == "is missing"
    assert "is missing" in page.text()


def test_tag_and_delete(layout: Layout) -> None:
    store = layout.location
    assert run("tag", f"{store}:demo", "tested").exit_code == 0
    assert run_json("resolve", f"{store}:tested") == run_json("resolve", f"{store}:demo")
    untagged = run_json("ls", store)[1]["digest"]
    refused = run_json("tag", f"{store}@{untagged}", DATED, code=1)
    assert "never moved" in refused["error"]["what"]
    assert run("tag", f"{store}:absent", "x").exit_code == 3
    assert run("tag", f"{store}:demo", "no/tag").exit_code == 2
    digest = run_json("resolve", f"{store}:demo")["digest"]
    assert "still has tags" in run_json("delete", f"{store}@{digest}", code=1)["error"]["what"]
    assert "would delete" in run("delete", "--dry-run", f"{store}:tested").output
    for tag in layout.list_tags():
        assert run_json("delete", f"{store}:{tag}") == {
            "location": store, "tag": tag, "manifests": [], "deleted": True,
        }  # fmt: skip
    assert run("delete", f"{store}:demo").exit_code == 3
    plan = run_json("delete", "--dry-run", f"{store}@{digest}")
    assert len(plan["manifests"]) == 3
    assert layout.resolve(digest) is not None
    assert run_json("delete", f"{store}@{digest}")["manifests"] == plan["manifests"]
    assert [item["digest"] for item in run_json("ls", store)] == [untagged]


def test_gc_of_a_layout(layout: Layout) -> None:
    store = layout.location
    assert "are young" in run("gc", store, "--older-than", "1").output
    then = time.time() - 100_000
    for _, path in layout.blob_files():
        os.utime(path, (then, then))
    plan = run("gc", store).output
    assert "1 manifests and 2 blobs: would free" in plan
    assert f"registry gc {store} --delete" in plan
    assert run_json("gc", store)["deleted"] is False
    done = run_json("gc", store, "--delete")
    assert (done["deleted"], len(done["blobs"])) == (True, 2)
    assert "0 manifests and 0 blobs" in run("gc", store).output
    assert run_json("verify", f"{store}:demo")["ok"]
    assert run("gc", store, "--wait", "1").exit_code == 2
    assert run("gc", f"{store}:demo").exit_code == 2
    assert run("gc", "oci-layout:absent").exit_code == 3


def test_gc_of_a_registry(layout: Layout, distribution: Distribution, repository: str) -> None:
    remote = f"{distribution.host}/{repository}"
    assert run("copy", f"{layout.location}:demo", remote).exit_code == 0
    assert "nothing is unreferenced" in run("gc", remote).output
    for tag in run_json("tags", remote):
        assert run("delete", f"{remote}:{tag}").exit_code == 0
    plan = run("gc", remote).output
    assert plan.count("unreferenced  sha256:") == 3
    assert plan.count("unreferenced  list sha256-") == 2
    assert len(run_json("gc", remote)["manifests"]) == 3
    done = run_json("gc", remote, "--delete", "--wait", "0")
    assert (done["deleted"], len(done["manifests"])) == (True, 3)
    assert run("gc", remote, "--older-than", "1").exit_code == 2
    assert run_json("tags", remote) == []


def test_pack_and_unpack(layout: Layout, tmp_path: Path) -> None:
    folder = tmp_path / "upload"
    result = run("pack", f"{layout.location}:demo", folder)
    assert result.exit_code == 0, result.output
    assert "kvreg pull" in result.stderr
    checked = run_json("unpack", folder)
    assert checked["artifact"] == run_json("resolve", f"{layout.location}:demo")["digest"]
    assert json.loads((folder / "packed.json").read_bytes())["files"] == checked["files"]
    assert run("unpack", folder).output.endswith("every file is right\n")
    again = f"oci-layout:{tmp_path}/again"
    assert run("unpack", folder, again).exit_code == 0
    assert run_json("verify", f"{again}:demo")["ok"]
    assert len(run_json("referrers", f"{again}:demo")) == 1
    assert run_json("verify", f"oci-layout:{folder}:demo")["ok"]
    assert run("pack", f"{layout.location}:demo", folder).exit_code == 5
    small = run_json("pack", f"{layout.location}:demo", tmp_path / "x", "--limit-gb", 1e-6, code=5)
    assert any(problem["where"].endswith(".whl") for problem in small["error"]["problems"])
    next(folder.glob("sha256-*")).unlink()
    assert run_json("unpack", folder, code=1)["error"]["problems"][0]["what"] == "is missing"
    assert run("unpack", tmp_path).exit_code == 3


def test_index(layout: Layout, tmp_path: Path) -> None:
    result = run("index", layout.location, tmp_path / "index")
    assert result.exit_code == 0, result.output
    assert "demo_pkg-1.2+cu128.sm75" in result.output
    assert "pip install" in result.stderr
    (wheel,) = run_json("index", layout.location, tmp_path / "index")["wheels"]
    assert (tmp_path / "index" / "files" / wheel["sha256"] / wheel["filename"]).is_file()
    empty = Layout(tmp_path / "empty")
    empty.prepare()
    assert "no wheels" in run("index", empty.location, tmp_path / "none").output
