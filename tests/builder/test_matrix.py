"""The job matrix, as GitHub Actions and as Kubernetes take it."""

import json
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
from click.testing import CliRunner

from builder.cli import main
from builder.kubernetes import NAME_LENGTH
from kvreg.model.profile import load_profile
from registry.attach import attach
from registry.describe import ANNOTATION_VERDICT, MEDIA_TYPE_VERDICT
from registry.store import open_store
from tests.support.layouts import write_layout
from tests.support.wheels import write_wheel

ROOT = Path(__file__).parents[2]
SITE = ("--image", "site/builder:1", "--engine-image", "site/engine:1", "--registry", "r:5000/x")


def run(*arguments: str, code: int = 0) -> dict:
    done = CliRunner().invoke(main, ["matrix", *arguments], env={"GITHUB_OUTPUT": ""})
    assert done.exit_code == code, (done.output, done.exception)
    return json.loads(done.stdout)


def test_every_profile_has_a_job_with_what_it_needs():
    jobs = {job["profile"]: job for job in run("--json")["include"]}
    assert set(jobs) == {p.parent.name for p in (ROOT / "profiles").glob("*/profile.toml")}
    vllm, adopted = jobs["t4x2-cu128"], jobs["t4x2-cu128-upstream"]
    assert vllm["toolchain"] == "cuda-12.8.1-ubuntu22.04"
    assert vllm["memory_gib"] >= 6 * 4
    assert vllm["key"].startswith("sha256:")
    assert (adopted["toolchain"], adopted["key"]) == ("", "")


def test_toolchain_and_runner_are_the_callers():
    (job,) = run(
        *("--json", "-p", "t4x2-cu128", "--toolchain", "cuda-12.4-debian12"),
        *("--runner", "large=big-linux"),
    )["include"]
    assert (job["toolchain"], job["runner"]) == ("cuda-12.4-debian12", "big-linux")
    assert run("--json", "--runner", "huge=x", code=2)["error"]["kind"] == "usage"
    assert run("--json", "--runner", "large", code=2)["error"]["kind"] == "usage"
    assert run("--json", "-p", "nobody", code=3)["error"]["kind"] == "not-found"


def test_what_a_store_has_is_left_out(tmp_path):
    profile = load_profile(ROOT / "profiles" / "t4-probe")
    wheel = write_wheel(tmp_path)
    write_layout(tmp_path / "store", profile, [(wheel, "probe")])
    found = run("--json", "--missing-from", f"oci-layout:{tmp_path / 'store'}")["include"]
    assert "t4-probe" not in {job["profile"] for job in found}
    assert "t4x2-cu128" in {job["profile"] for job in found}


def test_what_a_store_has_is_rebuilt_until_there_is_a_verdict(tmp_path):
    where = f"oci-layout:{tmp_path / 'store'}"
    assert run("--json", "--published-in", where) == {"include": []}
    profile = load_profile(ROOT / "profiles" / "t4-probe")
    manifest = write_layout(tmp_path / "store", profile, [(write_wheel(tmp_path), "probe")])
    digest = manifest.descriptor().digest
    (entry,) = run("--json", "--published-in", where, "--unjudged")["include"]
    assert (entry["profile"], entry["artifact"]) == ("t4-probe", digest)
    assert "toolchain" not in entry  # what it was made with is for its provenance to say
    assert run("--json", "--published-in", where, "-p", "t4x2-cu128") == {"include": []}
    with open_store(where) as store:
        # A verdict is one, whatever it is.
        annotations = {ANNOTATION_VERDICT: "different"}
        subject = manifest.descriptor()
        attach(store, subject, MEDIA_TYPE_VERDICT, b"{}", "verdict.json", annotations)
    assert run("--json", "--published-in", where, "--unjudged") == {"include": []}
    assert run("--json", "--published-in", where) == {"include": [entry]}
    done = CliRunner().invoke(main, ["matrix", "--published-in", where], env={"GITHUB_OUTPUT": ""})
    assert done.stdout.startswith(f"t4-probe: probe, {digest}, 2 cores")


@pytest.mark.parametrize(
    "arguments", [["--unjudged"], ["--kubernetes", *SITE, "--published-in", "oci-layout:x"]]
)
def test_what_rebuilds_are_not_asked_for_like(arguments):
    assert CliRunner().invoke(main, ["matrix", *arguments]).exit_code == 2


def test_outputs_of_a_step_are_single_lines(tmp_path):
    output = tmp_path / "output"
    CliRunner().invoke(main, ["matrix", "--github", str(output)])
    lines = dict(line.split("=", 1) for line in output.read_text().splitlines())
    assert json.loads(lines["matrix"]) == run("--json")
    assert int(lines["count"]) == len(run("--json")["include"])


@pytest.fixture(scope="module")
def jobs() -> list[dict]:
    more = ("--cache-claim", "cache", "--registry-secret", "login", "--namespace", "builds")
    return run("--kubernetes", *SITE, *more)["items"] + run("--kubernetes", *SITE)["items"]


@pytest.mark.parametrize("version", ["1.33", kubernetes_validate.latest_version()])
def test_manifests_are_as_the_published_schemas_say(jobs, version):
    for job in jobs:
        kubernetes_validate.validate(job, version, strict=True)


def test_a_wrong_manifest_would_be_seen(jobs):
    spoilt = json.loads(json.dumps(jobs[0]))
    spoilt["spec"]["template"]["spec"]["containers"][0]["comand"] = []
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        kubernetes_validate.validate(spoilt, kubernetes_validate.latest_version(), strict=True)


def test_only_the_engine_is_privileged_and_names_are_labels(jobs):
    for job in jobs:
        pod = job["spec"]["template"]["spec"]
        (build,), (engine,) = pod["containers"], pod["initContainers"]
        assert "securityContext" not in build
        assert engine["securityContext"] == {"privileged": True}
        assert pod["automountServiceAccountToken"] is False
        assert len(job["metadata"]["name"]) <= NAME_LENGTH
        assert build["args"][:2] == ["--profile", job["metadata"]["labels"]["kvreg/profile"]]
    assert len({job["metadata"]["name"] for job in jobs[: len(jobs) // 2]}) == len(jobs) // 2


def test_a_site_must_say_what_it_brings():
    assert CliRunner().invoke(main, ["matrix", "--kubernetes"]).exit_code == 2
