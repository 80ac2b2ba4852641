"""From a published runtime to its evidence: pull, sweep with its `vllm serve`, publish, show."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from kvreg.errors import ContractError, StorageError, VerificationError
from kvreg.sweep.evidence import pack, read_evidence
from tests.kvreg.conftest import publish
from tests.sweep.conftest import SUPPORT
from tests.sweep.test_run import tiny

__all__ = ["publish"]

BIN = Path(sys.executable).parent

# `vllm` of this runtime is the simulated server.
COMMAND = b"""
import sys
from demo_pkg.openai_server import main as serve

def main():
    assert sys.argv[1] == "serve"
    serve(sys.argv[2:])
"""


def run(*words, code=0, **variables):
    result = subprocess.run(
        [BIN / words[0], *map(str, words[1:]), "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **variables},
    )
    assert result.returncode == code, result.stdout + result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def swept(publish, tmp_path):
    published = publish(
        extra={
            "demo_pkg/openai_server.py": (SUPPORT / "openai_server.py").read_bytes(),
            "demo_pkg/command.py": COMMAND,
        },
        entry_points="[console_scripts]\nvllm = demo_pkg.command:main\n",
    )
    home = {"KVREG_HOME": str(published.home.root)}
    store = f"oci-layout:{published.layout}"
    run("kvreg", "pull", "demo", "--registry", store, **home)
    plan, out = tmp_path / "plan.toml", tmp_path / "sweep"
    plan.write_text(tiny())
    run(
        *("kvreg", "sweep", "run", plan, "--out", out, "--profile", "demo", "--sampler", "none"),
        **home,
    )
    return published, store, out


def test_a_sweep_is_evidence_of_the_exact_artifact(swept, publish, tmp_path):
    published, store, out = swept
    digest = published.manifest.descriptor().digest
    identity = json.loads((out / "identity.json").read_text())
    assert identity["artifact"] == digest
    assert identity["profile"] == published.profile.digest
    assert identity["engine"] == {"command": ["vllm", "serve"], "version": "1.2+cu128.sm75"}

    answer = run("kvreg", "sweep", "publish", out, "--registry", store)
    assert answer["artifact"] == digest
    shown = run("registry", "show", f"{store}@{digest}")
    (referrer,) = shown["referrers"]
    assert referrer["artifactType"] == "application/vnd.kvreg.evidence.v1+tar"
    assert referrer["annotations"]["vnd.kvreg.sweep.plan"] == identity["plan"]
    assert referrer["annotations"]["vnd.kvreg.sweep.states"] == "2 MEASURED"
    assert referrer["files"][0]["digest"] == answer["digest"]
    # Once more changes nothing.
    assert run("kvreg", "sweep", "publish", out, "--registry", store) == answer
    assert len(run("registry", "referrers", f"{store}@{digest}")) == 1

    # Another artifact is not what the sweep ran.
    tar = out.with_name("sweep.evidence.tar")
    other = tmp_path / "other"
    subprocess.run(["cp", "-r", published.layout, other], check=True)
    found = run("registry", "attach", f"oci-layout:{other}@{referrer['digest']}", tar, "--type",
                "evidence", code=1)  # fmt: skip
    assert found["error"]["what"] == "the sweep ran another artifact"
    missing = f"{store}@sha256:{'0' * 64}"
    assert run("registry", "attach", missing, tar, "--type", "evidence", code=3)
    assert run("registry", "attach", f"{store}@{digest}", tar, "--type", "!", code=2)

    # Where the maintainers' package is missing, the command to run elsewhere is named.
    found = run("kvreg", "sweep", "publish", out, "--registry", store, code=3, PATH="/nowhere")
    assert "registry attach" in found["error"]["remedy"]


def test_packing_is_reproducible_and_checked(swept, tmp_path):
    _, _, out = swept
    first = pack(out, tmp_path / "a.tar")
    (out / ".lock").touch()
    second = pack(out, tmp_path / "b.tar")
    assert first.digest == second.digest
    assert read_evidence(tmp_path / "a.tar").states == {"MEASURED": 2}
    with tarfile.open(first.path) as tar:
        names = tar.getnames()
    assert names[0] == "evidence.json" and names[1:] == sorted(names[1:])
    assert {"plan.toml", "identity.json", "facts.json", "ledger.jsonl"} <= set(names)

    raw = bytearray(first.path.read_bytes())
    place = raw.index(b"simulated server on")
    raw[place] ^= 1
    (tmp_path / "c.tar").write_bytes(raw)
    with pytest.raises(VerificationError, match="damaged"):
        read_evidence(tmp_path / "c.tar")
    (tmp_path / "d.tar").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(VerificationError):
        read_evidence(tmp_path / "d.tar")
    with pytest.raises(StorageError):
        pack(out, out / "inside.tar")

    (path,) = out.glob("cells/*.tp1.*/attempt-1/load.json")
    path.write_text(path.read_text() + " ")
    with pytest.raises(ContractError, match="differs from the ledger"):
        pack(out, tmp_path / "e.tar")


def test_an_unfinished_sweep_is_packed_only_when_told(bench, tmp_path):
    bench.write_plan(tiny(repetitions="2"))
    bench("run", "--shard", "1/2")
    with pytest.raises(ContractError, match="not finished"):
        pack(bench.out, tmp_path / "a.tar")
    assert pack(bench.out, tmp_path / "a.tar", unfinished=True).states == {"MEASURED": 2}
    # It ran no published runtime.
    found = run("kvreg", "sweep", "publish", bench.out, "--registry", "oci-layout:x",
                "--unfinished", code=1)  # fmt: skip
    assert "no published runtime" in found["error"]["what"]
