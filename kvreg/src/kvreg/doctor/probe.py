"""Running the native probe on every GPU and between them, and its report as checks.

The probe is a runtime like any other: it is staged from its own profile, and runs in a process of
its own with that runtime active, so that a crash of it is a result.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from kvreg.activation import variables
from kvreg.doctor.check import Check, undetermined
from kvreg.doctor.devicecode import runs_on
from kvreg.errors import KvregError
from kvreg.facts.model import HostFacts
from kvreg.home import Home
from kvreg.model.oci import ANNOTATION_COMPUTE_CAPABILITIES
from kvreg.runtime import Runtime, read_runtime, staged_folders
from kvreg.settings import require_trusted, required_keys

MODULE = "kvreg_probe"
_DEFAULT = "t4-probe"
_TIMEOUT = 300.0
_REQUIRED = "right arithmetic on every GPU, right copies between them"


def probe_checks(home: Home, facts: HostFacts) -> Iterator[Check]:
    """Run the staged probe; one check a GPU and one an ordered pair of GPUs.

    Raises `VerificationError` when a key is required and did not sign the probe.
    """
    runtime = staged_probe(home, facts)
    if runtime is None:
        remedy = f"kvreg pull {_DEFAULT} --registry REF, then again"
        yield undetermined("probe", _REQUIRED, "no probe is staged here", remedy)
        return
    require_trusted(runtime, required_keys())
    report, problem = _run(runtime, home)
    if report is None:
        yield Check("probe", _REQUIRED, None, "no report", "violated", problem, None)
        return
    yield from report_checks(report)


def staged_probe(home: Home, facts: HostFacts) -> Runtime | None:
    """The staged probe whose code runs on the GPUs here; any probe if none does."""
    probes = []
    for folder in staged_folders(home):
        try:
            runtime = read_runtime(folder)
            if any(wheel.role == "probe" for wheel in runtime.wheels):
                probes.append((_fits(runtime, facts), runtime.created, runtime))
        except KvregError:
            continue
    return max(probes, key=lambda item: item[:2])[2] if probes else None


def report_checks(report: Mapping[str, Any]) -> Iterator[Check]:
    """The probe's report (``kvreg_probe/report.schema.json``) as checks."""
    build = ", ".join(report["build"]["compute_capabilities"])
    if report["status"] == "no-gpu":
        yield Check(
            "probe", _REQUIRED, None, "no GPU", "violated", str(report["reason"]), "attach a GPU"
        )
        return
    problems = report["problems"]
    for device in report["devices"]:
        own = [p for p in problems if p["device"] == device["index"] and p["peer"] is None]
        speed = (device["transfer"] or {}).get("median_gb_per_s")
        right = sum(check["status"] == "ok" for check in device["checks"])
        found = f"{device['name']}: {right} of {len(device['checks'])} checks right"
        found += f", copies at {speed} GB/s" if speed is not None else ""
        required = f"code for {build} computes rightly"
        yield _check(f"probe.gpu{device['index']}", required, found, device["status"], own)
    for link in report["links"]:
        one, other = link["source"], link["target"]
        own = [p for p in problems if p["device"] == one and p["peer"] == other]
        speeds = [
            f"{item['kind']} {item['median_gb_per_s']} GB/s"
            for item in link["transfers"]
            if item.get("median_gb_per_s") is not None
        ]
        peer = "peer access" if link["peer_access"] else "no peer access"
        found = ", ".join([peer, *speeds])
        required = "copies arrive as they were sent"
        yield _check(f"probe.link{one}-{other}", required, found, link["status"], own)
    told = {(p["device"], p["peer"]) for p in problems}
    if (None, None) in told:
        own = [p for p in problems if p["device"] is None]
        yield _check("probe", _REQUIRED, "failed", "failed", own)


def _check(
    name: str, required: str, found: str, status: str, problems: list[Mapping[str, Any]]
) -> Check:
    if status == "ok" and not problems:
        return Check(name, required, None, found, "ok", found)
    texts = [f"{p['code']}: {p['what']} (found {p['found']})" for p in problems]
    remedies = [p["remedy"] for p in problems if p["remedy"]]
    reason = "; ".join(texts) or f"the probe says {status}"
    return Check(name, required, None, found, "violated", reason, "; ".join(remedies) or None)


def _run(runtime: Runtime, home: Home) -> tuple[dict[str, Any] | None, str]:
    """The report, or why there is none."""
    environment = {**os.environ, **variables(runtime, home, os.environ)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", MODULE, "--json"],
            env=environment,
            cwd=runtime.folder,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        return None, f"the probe gave no answer in {_TIMEOUT:.0f} s"
    try:
        return json.loads(done.stdout), ""
    except ValueError:
        lines = (done.stderr or done.stdout).strip().splitlines()
        return None, f"the probe ended with {done.returncode}: {lines[-1] if lines else 'silence'}"


def _fits(runtime: Runtime, facts: HostFacts) -> bool:
    code = runtime.annotations.get(ANNOTATION_COMPUTE_CAPABILITIES, "").split()
    code = code or list(runtime.profile().build.compute_capabilities)
    return all(runs_on(code, gpu.compute_capability or "") for gpu in facts.visible_gpus or ())
