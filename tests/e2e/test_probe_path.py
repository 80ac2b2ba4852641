"""Build, audit, publish, pull, verify and run: the whole path with the small probe, for real."""

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from builder.wheelfile import read_embedded
from tests.e2e.conftest import TOOLCHAIN, Commands

pytestmark = [pytest.mark.engine, pytest.mark.network]

PROFILE = "t4-probe"


def test_the_wheel_is_what_its_record_says(checkout, built_probe):
    wheel = Path(built_probe["wheel"])
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == built_probe["sha256"]
    assert wheel.stat().st_size == built_probe["size"]
    record = json.loads((checkout / "dist" / PROFILE / "record.json").read_text())
    assert record["network"] == "none"
    assert record["toolchain"]["name"] == TOOLCHAIN
    assert record["audit"]["ok"] is True
    assert {unit["source"] for unit in record["units"]} >= {"native/kernels.cu"}
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        assert b"\nVersion: 0.1.0+cu128.sm75\n" in archive.read(metadata)


def test_the_wheel_carries_its_bill_of_materials(built_probe):
    wheel = Path(built_probe["wheel"])
    document = json.loads(read_embedded(wheel) or b"")
    component = document["metadata"]["component"]
    assert component["name"] == "kvreg-probe"
    assert "hashes" not in component  # no file holds its own hash
    with zipfile.ZipFile(wheel) as archive:
        for module in component["components"]:
            data = archive.read(module["name"])
            assert module["hashes"][0]["content"] == hashlib.sha256(data).hexdigest()


def test_signed_when_published_and_refused_with_another_key(
    commands: Commands, checkout, built_probe, tmp_path
):
    secret = {"COSIGN_PASSWORD": "open sesame"}
    team, other = tmp_path / "team", tmp_path / "other"
    for prefix in (team, other):
        commands("registry", "keygen", "--output-prefix", prefix, **secret)
    store, home = f"oci-layout:{tmp_path / 'signed'}", tmp_path / "home"
    key = ("--key", f"{team}.key")
    commands("builder", "publish", "-p", PROFILE, "--to", store, *key, **secret)
    commands("registry", "verify", f"{store}:{PROFILE}", "--key", f"{team}.pub")
    pull = ("kvreg", "pull", PROFILE, "--registry", store, "--home", home)
    refused = commands(*pull, "--verify-key", f"{other}.pub", code=1)
    assert "no signature of the artifact" in refused.err
    commands(*pull, KVREG_VERIFY_KEY=f"{team}.pub")
    statement = json.loads((checkout / "dist" / PROFILE / "provenance.json").read_text())
    digests = {subject["digest"]["sha256"] for subject in statement["subject"]}
    resolved = commands("registry", "resolve", f"{store}:{PROFILE}", "--json").json()
    assert digests == {built_probe["sha256"], resolved["digest"].removeprefix("sha256:")}


def test_the_page_of_the_record_names_wheel_toolchain_and_audit(commands: Commands, built_probe):
    page = commands("builder", "record", PROFILE).out
    for text in (built_probe["sha256"], TOOLCHAIN, "| sass | pass |", "native/kernels.cu"):
        assert str(text) in page


def test_an_adopted_profile_needs_no_engine_to_be_planned(commands: Commands):
    plan = commands("builder", "build", "-p", "t4x2-cu128-upstream", "--dry-run", "--json").json()
    assert plan["toolchain"] is None
    assert plan["recipe"] == "adopt"


def test_the_default_toolchain_names_its_digest_and_the_other_when_it_cannot_be_pulled(
    commands: Commands, built_probe
):
    ended = commands("builder", "build", "-p", PROFILE, code=4)
    assert "sha256:" in ended.err
    assert TOOLCHAIN in ended.err
    # The build that was finished before is untouched.
    commands("builder", "record", PROFILE)
    assert Path(str(built_probe["wheel"])).is_file()


def test_missing_inputs_are_named_before_anything_starts(commands: Commands, tmp_path):
    ended = commands(
        *("builder", "build", "-p", PROFILE, "--toolchain", TOOLCHAIN, "--again", "--offline"),
        code=3,
        KVREG_BUILD_CACHE=str(tmp_path),
    )
    assert "scikit_build_core" in ended.err
    assert "builder fetch --profile t4-probe" in ended.err
    assert not (tmp_path / "workspaces").exists()


def test_sources_that_differ_from_the_lock_are_refused(commands: Commands, checkout, built_probe):
    lock = checkout / "profiles" / PROFILE / "source.lock"
    before = lock.read_text()
    try:
        text = before.splitlines()
        line = next(i for i, t in enumerate(text) if t.startswith("sha256"))
        text[line] = 'sha256 = "' + "0" * 64 + '"'
        lock.write_text("\n".join(text) + "\n")
        ended = commands(*("builder", "build", "-p", PROFILE, "--toolchain", TOOLCHAIN), code=1)
        assert "are not those that t4-probe locks" in ended.err
    finally:
        lock.write_text(before)


@pytest.mark.parametrize("kind", ["layout", "registry"])
def test_pulled_from_anywhere_it_is_the_same_runtime(
    kind, commands: Commands, layout, distribution, tmp_path
):
    reference = layout
    if kind == "registry":
        reference = f"{distribution.host}/team/probe"
        commands("builder", "publish", "-p", PROFILE, "--to", reference)
    home = tmp_path / "home"
    pulled = commands("kvreg", "pull", PROFILE, "--registry", reference, "--home", home, "--json")
    digest = commands("kvreg", "profile", "digest", PROFILE).out.strip()
    local = commands("registry", "resolve", f"{layout}:{PROFILE}", "--json").json()
    assert pulled.json()["profile"]["digest"] == digest
    assert pulled.json()["manifest"]["digest"] == local["digest"]
    commands("kvreg", "verify", PROFILE, "--home", home)


def test_the_probe_runs_and_says_that_there_is_no_gpu(commands: Commands, layout, tmp_path):
    home = tmp_path / "home"
    commands("kvreg", "pull", PROFILE, "--registry", layout, "--home", home)
    ended = commands(
        *("kvreg", "run", "--home", home, PROFILE, "--", "python", "-m", "kvreg_probe", "--json"),
        PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin",
        code=None,
    )
    report = json.loads(ended.out)
    assert report["build"]["version"] == "0.1.0+cu128.sm75"
    if report["status"] == "no-gpu":
        assert ended.code == 0
    commands("kvreg", "verify", PROFILE, "--home", home)  # running it changed nothing


def test_a_flipped_bit_in_the_store_is_refused_and_leaves_nothing(
    commands: Commands, layout, checkout, tmp_path
):
    copy = tmp_path / "store"
    shutil.copytree(checkout / "store", copy)
    blob = max((copy / "blobs" / "sha256").iterdir(), key=lambda p: p.stat().st_size)
    blob.chmod(0o644)
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    home = tmp_path / "home"
    ended = commands(
        "kvreg", "pull", PROFILE, "--registry", f"oci-layout:{copy}", "--home", home, code=1
    )
    assert "sha256:" in ended.err
    assert not list((home / "runtimes").glob("*/runtime.json"))


def test_other_peoples_tools_read_the_artifact(
    commands: Commands, layout, checkout, distribution, tmp_path
):
    commands("builder", "publish", "-p", PROFILE, "--to", f"{distribution.host}/team/tools")
    raw = subprocess.run(
        [
            *("skopeo", "inspect", "--raw", "--tls-verify=false"),
            f"docker://{distribution.host}/team/tools:{PROFILE}",
        ],
        capture_output=True,
        check=True,
    ).stdout
    resolved = commands("registry", "resolve", f"{layout}:{PROFILE}", "--json").json()
    assert f"sha256:{hashlib.sha256(raw).hexdigest()}" == resolved["digest"]
    digest = commands("kvreg", "profile", "digest", PROFILE).out.strip()
    assert json.loads(raw)["config"]["digest"] == digest


def test_a_wheel_that_fails_its_audit_cannot_be_published(
    commands: Commands, checkout, built_probe
):
    folder = checkout / "dist" / PROFILE
    kept = {p: p.read_bytes() for p in folder.glob("*.json")}
    try:
        record = json.loads((folder / "record.json").read_text())
        record["audit"]["ok"] = False
        (folder / "record.json").write_text(json.dumps(record))
        ended = commands("builder", "publish", "-p", PROFILE, "--to", "oci-layout:other", code=1)
        assert "has not passed its whole audit" in ended.err
        assert not (checkout / "other").exists()
    finally:
        for path, data in kept.items():
            path.write_bytes(data)


def test_a_wheel_changed_after_its_audit_cannot_be_published(commands: Commands, built_probe):
    wheel = Path(built_probe["wheel"])
    data = wheel.read_bytes()
    try:
        wheel.write_bytes(data + b"\0")
        ended = commands("builder", "publish", "-p", PROFILE, "--to", "oci-layout:other", code=1)
        assert "not the wheel that its record describes" in ended.err
    finally:
        wheel.write_bytes(data)


def test_a_reference_that_no_registry_takes_is_refused_first(commands: Commands, built_probe):
    ended = commands(
        "builder", "publish", "-p", PROFILE, "--to", "localhost:5000/Team/vLLM", code=2
    )
    assert "Team" in ended.err or "upper" in ended.err.lower()
