"""The workflows: as the published schema says, with no shell of their own, and run here."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from tests.support import upstream, workflows
from tests.support.package_index import loopback_index

NAMES = sorted(path.name for path in workflows.WORKFLOWS.glob("*.yml"))
ROOT = workflows.ROOT


def test_they_are_as_the_published_schema_says():
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    paths = [str(workflows.WORKFLOWS / name) for name in NAMES]
    done = subprocess.run(
        [*command, "vendor.github-workflows", *paths], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_schema_check_can_fail(tmp_path):
    path = tmp_path / "x.yml"
    path.write_text("on: push\njobs:\n  a:\n    runs_on: x\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "check_jsonschema",
            "--builtin-schema",
            "vendor.github-workflows",
            path,
        ],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not installed")
def test_actionlint_has_nothing_to_say():
    paths = [str(workflows.WORKFLOWS / name) for name in NAMES]
    done = subprocess.run(["actionlint", *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_no_step_holds_shell_or_an_expression(name):
    """One command a step, and what a workflow is given comes by variables: it is no code."""
    for job in workflows.load(name)["jobs"].values():
        for step in job["steps"]:
            run = step.get("run", "")
            assert "${{" not in run, step
            assert "\n" not in run.strip(), step
            assert re.fullmatch(r"(scripts/\w+( \w+)?|\.ci/run|apt-get .*|)", run.strip()), step


@pytest.mark.parametrize("name", NAMES)
def test_permissions_are_said_and_expressions_name_what_there_is(name):
    workflow = workflows.load(name)
    assert workflow["permissions"]["contents"] == "read"
    ids = {s["id"] for j in workflow["jobs"].values() for s in j["steps"] if "id" in s}
    text = (workflows.WORKFLOWS / name).read_text()
    for found in re.findall(r"steps\.(\w+)\.outputs", text):
        assert found in ids
    inputs = (workflow.get(True, workflow.get("on")) or {}).get("workflow_dispatch") or {}
    for found in re.findall(r"inputs\.([\w-]+)", text):
        assert found in inputs.get("inputs", {})


@pytest.fixture
def folder(tmp_path):
    """A checkout for steps to run in, with the tools of this one."""
    root = tmp_path / "work"
    workflows.lay_out(root)
    shutil.copytree(ROOT / "tests" / "data" / "hosts", root / "tests" / "data" / "hosts")
    return root


def test_the_matrix_step_leaves_what_the_build_jobs_take(folder, monkeypatch):
    for name in ("profiles", "dockerfiles"):
        shutil.copytree(ROOT / name, folder / name)
    monkeypatch.setenv("KVREG_CHECKOUT", str(folder))
    runner = workflows.Runner(
        workflows.load("build.yml"),
        folder,
        {"inputs": {"profiles": "t4-probe t4x2-cu128", "registry": "oci-layout:store"}},
    )
    outputs = runner.run("matrix", skip=("set up",))
    assert outputs["count"] == "2"
    found = json.loads(outputs["matrix"])["include"]
    assert {job["profile"] for job in found} == {"t4-probe", "t4x2-cu128"}
    wanted = set(re.findall(r"matrix\.(\w+)", (workflows.WORKFLOWS / "build.yml").read_text()))
    assert wanted - {"outputs", "matrix"} <= set(found[0])


def test_check_and_propose_end_in_a_branch_with_the_new_profile(folder, tmp_path, monkeypatch):
    with loopback_index() as index:
        monkeypatch.setenv("KVREG_INDEX_URL", index.url)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
        monkeypatch.setenv("KVREG_BUILD_CACHE", str(tmp_path / "cache"))
        upstream.add_everything(index)
        upstream.add_release(index, "0.18.1")
        upstream.add_release(index, "0.19.0", requires=["newdep>=1"])
        upstream.checkout(folder, index)
        monkeypatch.setenv("KVREG_CHECKOUT", str(folder))
        origin = tmp_path / "origin.git"
        git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
        (folder / ".gitignore").write_text("/dist/\n/.venv\n.output-*\n")
        for command in (
            ["init", "-q", "-b", "main"],
            ["config", "user.name", "t"],
            ["config", "user.email", "t@example.org"],
            ["add", "-A"],
            ["commit", "-q", "-m", "checkout"],
            ["init", "-q", "--bare", str(origin)],
            ["remote", "add", "origin", str(origin)],
        ):
            subprocess.run([*git, *command], cwd=folder, check=True)
        flow = workflows.load("upstream.yml")
        outputs = workflows.Runner(flow, folder, {}).run("check", skip=("set up",))
        assert outputs["count"] == "1"
        (entry,) = json.loads(outputs["proposals"])["include"]
        # What needs the site itself is left out: opening the request at its address.
        monkeypatch.setenv("PUSH_ONLY", "1")
        workflows.Runner(flow, folder, {"matrix": entry}).run("propose", skip=("set up",))
    show = ["git", "--git-dir", str(origin), "show", "--stat", "--format=%B"]
    text = subprocess.run(
        [*show, "profile/t4x2-cu128-v0.19.0"], capture_output=True, text=True, check=True
    ).stdout
    assert "t4x2-cu128-v0.19.0: vllm v0.19.0" in text
    assert "Published images against it" in text
    changed = set(re.findall(r"(profiles/\S+)\s+\|", text))
    assert changed == {
        f"profiles/t4x2-cu128-v0.19.0/{name}"
        for name in ("build.lock", "host-freeze.txt", "overlay.lock", "profile.toml", "source.lock")
    }
