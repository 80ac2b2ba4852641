"""Runs inside the build container: the probe's source tree to a wheel. See container.py."""

from __future__ import annotations

import shutil

from container import (
    OUT,
    RECIPE,
    WORK,
    compile_environment,
    finish,
    keep_logs,
    make_environment,
    parameters,
    run,
    step,
)

PARAMETERS = parameters()


def main() -> None:
    step("install build requirements")
    venv = make_environment(PARAMETERS["requirements"])
    source = WORK / "src"
    shutil.copytree(RECIPE / "src", source)
    step("compile")
    environment = compile_environment(venv, PARAMETERS)
    launcher = {
        f"CMAKE_{language}_COMPILER_LAUNCHER": "ccache"
        for language in ("CXX", "CUDA")
        if "CCACHE_DIR" in environment
    }
    environment |= launcher | {
        "CUDAARCHS": PARAMETERS["architectures"],
        "KVREG_PROBE_LOCAL_VERSION": PARAMETERS["local_version"],
        "CMAKE_BUILD_PARALLEL_LEVEL": str(PARAMETERS["jobs"]),
    }
    run(
        *(venv / "bin" / "python", "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"),
        *("--no-index", "--no-cache-dir", "--disable-pip-version-check", "--verbose"),
        *("--config-settings", f"build-dir={WORK / 'build'}", "--wheel-dir", OUT, source),
        cwd=WORK,
        env=environment,
    )
    keep_logs(WORK / "build", environment)
    finish()


if __name__ == "__main__":
    main()
