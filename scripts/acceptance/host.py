"""Stages that look at the host, bring the runtime and use it: from facts to a server."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from typing import Any

from acceptance.common import Acceptance, alive, inside, picked
from acceptance.state import StageFailed


def facts(a: Acceptance) -> Mapping[str, Any]:
    """What this host is."""
    path = a.results / "facts.json"
    a.results.mkdir(parents=True, exist_ok=True)
    found = a.commands.json("facts", "--output", path)
    gpus = found.get("gpus") or []
    return {
        "os": found["system"].get("os"),
        "python": found["python"]["version"],
        "torch": (found.get("torch") or {}).get("version"),
        "driver": (found.get("driver") or {}).get("version"),
        "gpus": [f"{gpu.get('name')}, {gpu.get('memory_mib')} MiB" for gpu in gpus],
        "packages": len(found.get("packages") or {}),
    }


def doctor(a: Acceptance) -> Mapping[str, Any]:
    """The host satisfies the profile, with nothing that was not validated."""
    return _diagnosed(a, "doctor.json", a.choices.profile, "--strict")


def refusals(a: Acceptance) -> Mapping[str, Any]:
    """Profiles that are for other hosts are refused, each with its reasons."""
    found = {}
    for name in a.choices.refused:
        answer = a.commands.json("doctor", name, code=1)
        reasons = [
            f"{c['name']}: {c['reason']}" for c in answer["checks"] if c["status"] == "violated"
        ]
        if not reasons:
            raise StageFailed(f"{name} was refused without a reason")
        found[name] = reasons
    return found


def pull(a: Acceptance) -> Mapping[str, Any]:
    """The artifact comes from where it lies, verified and staged; the host stays as it was."""
    source = ["--registry", a.choices.registry] if a.choices.registry else []
    before = a.facts()["packages"]
    began = time.monotonic()
    pulled = a.commands.json("pull", a.choices.profile, "--no-lock", *source, timeout=900)
    seconds = time.monotonic() - began
    a.commands.client("verify", a.choices.profile, timeout=600)
    if a.choices.probe:
        a.commands.json("pull", a.choices.probe, "--no-lock", timeout=300)
    after = a.commands.json("facts")["packages"]
    if before != after:
        changed = sorted(set(before.items()) ^ set(after.items()))
        raise StageFailed(f"the host's packages changed: {changed[:5]}")
    return {
        **picked(pulled, "profile", "digest", "manifest_digest", "bytes"),
        "seconds": round(seconds, 1),
    }


def staged(a: Acceptance) -> Mapping[str, Any]:
    """With the runtime here: its device code, libraries, symbols and packages, and the probe."""
    probe = ["--probe"] if a.choices.probe else []
    return _diagnosed(a, "doctor-staged.json", a.choices.profile, "--strict", *probe)


def imports(a: Acceptance) -> Mapping[str, Any]:
    """Activated in a process, vLLM and its native modules import, beside the host's torch."""
    found = inside(a, "imports", timeout=300)
    if not found["file"].startswith(str(a.home)):
        raise StageFailed(f"vLLM was imported from {found['file']}")
    if found["torch_file"].startswith(str(a.home)):
        raise StageFailed(f"torch was imported from {found['torch_file']}")
    return found


def kernels(a: Acceptance) -> Mapping[str, Any]:
    """Native kernels compute what torch does, loaded lazily and all at once."""
    return {
        "lazy": inside(a, "kernels", timeout=200),
        "eager": inside(a, "kernels", timeout=200, CUDA_MODULE_LOADING="EAGER"),
    }


def llm(a: Acceptance) -> Mapping[str, Any]:
    """kvreg.LLM generates, and the same again."""
    model, tokenizer = a.model()
    timeout = max(60, min(a.left - 20, 420))
    return inside(a, "llm", model, tokenizer, max(a.degrees()), a.utilization(), timeout=timeout)


def serve(a: Acceptance) -> Mapping[str, Any]:
    """kvreg serve answers over HTTP, and leaves nothing behind when it is stopped."""
    model, tokenizer = a.model()
    log = a.results / "logs" / "serve-server.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    engine = ["--engine-command", a.choices.engine_command] if a.choices.engine_command else []
    command = [
        *(*a.commands.kvreg, "serve", a.choices.profile, str(model), "--port", "8731", "--json"),
        *("--log", str(log), "--timeout", str(max(60.0, min(a.left - 60, 420))), *engine, "--"),
        *("--tokenizer", str(tokenizer), "--load-format", "dummy", "--max-model-len", "1024"),
        *("--max-num-seqs", "8", "--gpu-memory-utilization", str(a.utilization())),
        *("--served-model-name", "shape-3b", "--enforce-eager"),
        *("--tensor-parallel-size", str(max(a.degrees()))),
    ]
    errors = a.results / "logs" / "serve-stderr.log"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            command, env=a.commands.environment, stdout=subprocess.PIPE, stderr=stderr
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.strip().startswith(b"{"):
            process.wait(30)
            raise StageFailed(f"the server did not start: {errors.read_text()[-1500:]}")
        ready = json.loads(line)
        asked = {"model": "shape-3b", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
        answer = _post(f"{ready['url']}/completions", {**asked, "prompt": list(range(100, 164))})
        process.send_signal(signal.SIGTERM)
        code = process.wait(120)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
    if answer["usage"] != {"prompt_tokens": 64, "completion_tokens": 16, "total_tokens": 80}:
        raise StageFailed(f"the server counts {answer['usage']}")
    if code != 0 or alive(ready["pid"]):
        raise StageFailed(
            f"stopped with {code}, process {ready['pid']} alive: {alive(ready['pid'])}"
        )
    return {"ready_s": ready["ready_s"], "usage": answer["usage"], "defaults": ready["defaults"]}


def _post(url: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """A streamed completion; its usage."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(
        url, json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    usage = None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=120) as response:
        for raw in response:
            line = raw.decode().strip()
            if line.startswith("data: {") and (found := json.loads(line[6:]).get("usage")):
                usage = {
                    k: found[k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")
                }
    return {"usage": usage}


def _diagnosed(a: Acceptance, name: str, *words: str) -> Mapping[str, Any]:
    ended = a.commands.client("doctor", *words, "--json", code=None, timeout=200)
    try:
        answer = json.loads(ended.stdout)
        checks = answer["checks"]
    except (ValueError, KeyError):
        raise StageFailed(f"doctor gave no diagnosis: {ended.stderr[-800:]}") from None
    (a.results / name).write_text(json.dumps(answer, indent=1), "utf-8")
    if ended.returncode != 0:
        wrong = [
            f"{c['name']}: {c['status']}: {c['reason']}" for c in checks if c["status"] != "ok"
        ]
        raise StageFailed("; ".join(wrong))
    return {"checks": len(checks), "found": {c["name"]: c["found"] for c in checks}}
