"""What every recipe's script does inside the build container.

Standard library only: it runs on the toolchain's CPython, with no network and no inherited
environment. Every path is fixed, so that what is built does not depend on the machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

INPUTS = Path("/inputs")
RECIPE = Path("/recipe")
WORK = Path("/work")
OUT = Path("/out")

_steps: list[dict[str, Any]] = []


def parameters() -> dict[str, Any]:
    """What the builder decided for this build."""
    return json.loads((RECIPE / "parameters.json").read_text())


def step(name: str) -> None:
    """Say what begins; the time that each step took goes into the build record."""
    now = time.monotonic()
    if _steps:
        _steps[-1]["seconds"] = round(now - _steps[-1].pop("started"), 1)
    _steps.append({"name": name, "started": now})
    print(f"::step {name}", flush=True)


def finish() -> None:
    """End the last step and leave the times in /out."""
    step("done")
    _steps.pop()
    (OUT / "steps.json").write_text(json.dumps(_steps, indent=1))


def run(*argv: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    """Run a command; its failure ends the build with its exit status."""
    sys.stdout.flush()
    result = subprocess.run([str(a) for a in argv], cwd=cwd, env=env, check=False)
    if result.returncode != 0:
        sys.exit(f"{Path(str(argv[0])).name} ended with exit status {result.returncode}")


def make_environment(requirements: list[str]) -> Path:
    """A virtual environment with exactly the locked build requirements; returns its folder."""
    venv = WORK / "venv"
    run(sys.executable, "-m", "venv", venv)
    run(
        *(venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"),
        *("--no-compile", "--no-cache-dir", "--disable-pip-version-check"),
        *(INPUTS / name for name in requirements),
    )
    return venv


def compile_environment(venv: Path, wanted: Mapping[str, Any]) -> dict[str, str]:
    """The variables that every compile sees; also left in /out for the build record."""
    tools = [f"{venv}/bin", "/usr/local/cuda/bin", "/usr/local/bin", "/usr/bin", "/bin"]
    # The scripts that a wheel installs may name another interpreter; cmake's own folder does not.
    tools[1:1] = [str(p) for p in (venv / "lib").glob("python3*/site-packages/cmake/data/bin")]
    environment = {
        "PATH": ":".join(tools),
        "HOME": os.environ["HOME"],
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "CUDA_HOME": "/usr/local/cuda",
        "CUDACXX": "/usr/local/cuda/bin/nvcc",
        "SOURCE_DATE_EPOCH": str(wanted["source_date_epoch"]),
        **wanted["environment"],
    }
    ccache = {name: value for name, value in os.environ.items() if name.startswith("CCACHE_")}
    if ccache.get("CCACHE_DIR") and shutil.which("ccache"):
        run("ccache", "--zero-stats")  # the record counts this build alone
        run("ccache", "--cleanup")  # counts what was restored, and keeps to the size limit
    return environment | ccache


def keep_logs(build: Path, environment: Mapping[str, str]) -> None:
    """Leave in /out what the record is made of: variables, ninja's times, ccache's counters."""
    (OUT / "environment.json").write_text(json.dumps(dict(environment), indent=1, sort_keys=True))
    for log in sorted(build.rglob(".ninja_log")):
        shutil.copyfile(log, OUT / "ninja_log")
    if "CCACHE_DIR" in environment and shutil.which("ccache"):
        counters = subprocess.run(
            ["ccache", "--print-stats"], capture_output=True, text=True, check=False
        )
        (OUT / "ccache_stats").write_text(counters.stdout)
