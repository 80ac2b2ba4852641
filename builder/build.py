"""The hermetic build: locked inputs and a toolchain image in, one wheel and its record out."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builder.cache import InputCache, file_sha256, storage_errors
from builder.compile_cache import DEFAULT_LIMIT, CompileCache
from builder.engine import Engine, Mount
from builder.errors import BuildError
from builder.fetch import missing
from builder.inputs import Input, read_lock, tree_input
from builder.jobs import Jobs
from builder.ninja import Unit, read_units
from builder.recipes.model import Recipe, recipe
from builder.toolchain import ToolchainImage
from builder.workspace import container_user, prepare, sweep
from kvreg.errors import ContractError, NotFoundError
from kvreg.model.profile import Profile

PYTHON = "/opt/python3.12/bin/python3.12"
LOG_TAIL = 25

OnLine = Callable[[str], None]


@dataclass(frozen=True)
class Built:
    """A finished build. Times in seconds, memory in bytes.

    environment: the variables that the compile saw. units: translation units with their times.
    compile_cache: ccache's counters, empty when no cache was used; compile_cache_storage: what the
    cache holds then. thinning: what was taken out of which wheel, None for one that is not thinned.
    """

    wheel: Path
    inputs: tuple[Input, ...]
    toolchain: ToolchainImage | None
    jobs: Jobs | None
    started: datetime
    wall_seconds: float
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    steps: tuple[dict[str, Any], ...] = ()
    units: tuple[Unit, ...] = ()
    compile_cache: dict[str, int] = field(default_factory=dict)
    compile_cache_storage: dict[str, Any] = field(default_factory=dict)
    thinning: dict[str, Any] | None = None


def locked_inputs(profile: Profile, folder: Path) -> dict[str, tuple[Input, ...]]:
    """The inputs of a profile by lock (``source``, ``build``)."""
    return {
        role: read_lock(folder / lock.file)
        for role, lock in profile.locks.items()
        if role in ("source", "build")
    }


def require_present(inputs: tuple[Input, ...], cache: InputCache, profile: str) -> None:
    """Raises NotFoundError naming every input that the cache lacks."""
    absent = missing(inputs, cache)
    if absent:
        raise NotFoundError(
            f"{len(absent)} locked inputs are not in the input cache",
            expected=", ".join(i.filename for i in absent),
            found=f"nothing of them in {cache.root}",
            remedy=f"run: builder fetch --profile {profile}",
        )


def require_trees(made: Recipe, inputs: tuple[Input, ...], profile: str) -> None:
    """Raises ContractError when a source tree of this checkout is not the locked one."""
    for item in inputs:
        if item.kind != "tree":
            continue
        found = tree_input(item.name, item.version, item.filename, made.files[item.filename])
        if found.sha256 != item.sha256:
            raise ContractError(
                f"the sources of {item.name} are not those that {profile} locks",
                expected=f"sha256:{item.sha256}",
                found=f"sha256:{found.sha256}",
                remedy=f"if the change is meant, run: builder lock --profile {profile}",
            )


def build(
    profile: Profile,
    folder: Path,
    *,
    cache: InputCache,
    engine: Engine,
    toolchain: ToolchainImage,
    jobs: Jobs,
    out: Path,
    compile_cache: CompileCache | None,
    compile_cache_limit: str = DEFAULT_LIMIT,
    on_line: OnLine,
) -> Built:
    """Compile the wheel of a profile in a container without network; it lands in `out`.

    out also gets ``build.log``. Raises NotFoundError for inputs that the cache lacks (before
    anything starts), ContractError when the toolchain's CUDA is outside the profile's range,
    BuildError when the build fails.
    """
    made = recipe(profile.build.recipe)
    locks = locked_inputs(profile, folder)
    inputs = tuple(item for role in locks.values() for item in role)
    require_present(inputs, cache, profile.name)
    require_trees(made, inputs, profile.name)
    judge_cuda(profile, toolchain)
    # What a build that was killed outright left running or lying about.
    engine.reap()
    sweep(cache.folder("workspaces"))
    root = cache.folder("workspaces") / f"{profile.name}-{os.getpid()}"
    space = prepare(root, made, inputs, cache, _parameters(made, profile, locks, jobs))
    mounts = [
        Mount(space.inputs, "/inputs", read_only=True),
        Mount(space.recipe, "/recipe", read_only=True),
        Mount(space.work, "/work", read_only=False),
        Mount(space.out, "/out", read_only=False),
    ]
    environment = {"HOME": "/work", "CCACHE_DISABLE": "1"}
    if compile_cache is not None:
        mounts.append(Mount(compile_cache.folder, "/ccache", read_only=False))
        # By content: in an image all times are the same, so they tell no compiler from another.
        environment = {
            "HOME": "/work",
            "CCACHE_DIR": "/ccache",
            "CCACHE_COMPILERCHECK": "content",
            "CCACHE_MAXSIZE": compile_cache_limit,
        }
    started = datetime.now(UTC)
    clock = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    log = out / "build.log"
    try:
        using = compile_cache.in_use() if compile_cache is not None else nullcontext()
        with using, log.open("w", encoding="utf-8") as handle:

            def line(text: str) -> None:
                handle.write(text.rstrip("\n") + "\n")
                handle.flush()
                on_line(text)

            result = engine.run(
                toolchain.image_digest,
                [PYTHON, "-E", "-s", "-B", f"/recipe/{made.script}"],
                mounts=mounts,
                environment=environment,
                network=False,
                user=container_user(),
                on_line=line,
            )
        if result.exit_code != 0:
            tail = log.read_text("utf-8", "replace").splitlines()[-LOG_TAIL:]
            raise BuildError(
                f"building {profile.name} failed",
                expected="exit status 0",
                found=f"exit status {result.exit_code}; the log ends:\n    " + "\n    ".join(tail),
                remedy=f"the whole log is {log}",
            )
        wheel = _only_wheel(space.out, out)
        return Built(
            wheel=wheel,
            inputs=inputs,
            toolchain=toolchain,
            jobs=jobs,
            started=started,
            wall_seconds=round(time.monotonic() - clock, 1),
            cpu_seconds=result.cpu_seconds,
            peak_memory_bytes=result.peak_memory_bytes,
            environment=_json(space.out / "environment.json", {}),
            steps=tuple(_json(space.out / "steps.json", [])),
            units=read_units(space.out / "ninja_log"),
            compile_cache=_counters(space.out / "ccache_stats"),
            compile_cache_storage=compile_cache.storage(compile_cache_limit)
            if compile_cache is not None
            else {},
        )
    finally:
        shutil.rmtree(root, ignore_errors=True)


def adopt(profile: Profile, folder: Path, *, cache: InputCache, out: Path) -> Built:
    """Take the one locked wheel as it is. Raises NotFoundError when the cache lacks it."""
    started, clock = datetime.now(UTC), time.monotonic()
    item = locked_wheel(profile, folder, cache)
    with storage_errors("write", out):
        out.mkdir(parents=True, exist_ok=True)
        wheel = out / item.filename
        wheel.unlink(missing_ok=True)
        try:
            os.link(cache.path(item.sha256), wheel)
        except OSError:
            shutil.copyfile(cache.path(item.sha256), wheel)
    return Built(
        wheel=wheel,
        inputs=tuple(i for role in locked_inputs(profile, folder).values() for i in role),
        toolchain=None,
        jobs=None,
        started=started,
        wall_seconds=round(time.monotonic() - clock, 1),
    )


def locked_wheel(profile: Profile, folder: Path, cache: InputCache) -> Input:
    """The one wheel that a profile takes from upstream; its bytes in the cache are the locked ones.

    Raises NotFoundError when the cache lacks an input, ContractError when they are damaged, or the
    lock names another number of wheels.
    """
    locks = locked_inputs(profile, folder)
    require_present(tuple(i for role in locks.values() for i in role), cache, profile.name)
    wheels = [i for i in locks.get("source", ()) if i.kind == "wheel"]
    if len(wheels) != 1:
        raise ContractError(
            f"recipe {profile.build.recipe} of {profile.name} needs exactly one wheel in"
            " source.lock",
            expected="1",
            found=str(len(wheels)),
        )
    (item,) = wheels
    found = file_sha256(cache.path(item.sha256))
    if found != item.sha256:
        raise ContractError(
            f"{item.filename} in the input cache is damaged",
            expected=item.sha256,
            found=found,
            remedy="remove it from the cache and fetch again",
        )
    return item


def judge_cuda(profile: Profile, toolchain: ToolchainImage) -> None:
    """Raises ContractError when the toolchain's nvcc is outside what the profile requires."""
    verdict = profile.build.cuda.judge(toolchain.cuda_version)
    if verdict.status == "violated":
        raise ContractError(
            f"toolchain {toolchain.name} does not satisfy profile {profile.name}",
            expected=f"nvcc {profile.build.cuda.require}",
            found=toolchain.cuda_version,
            remedy="use one of: " + ", ".join(profile.build.toolchains),
        )


def _parameters(
    made: Recipe, profile: Profile, locks: dict[str, tuple[Input, ...]], jobs: Jobs
) -> dict[str, Any]:
    return {
        "profile": profile.name,
        "package": profile.runtime.package,
        "version": profile.runtime.version,
        "requirements": [i.filename for i in locks.get("build", ()) if i.kind == "wheel"],
        "compute_capabilities": list(profile.build.compute_capabilities),
        "ptx": profile.build.ptx,
        "jobs": jobs.count,
        "source_date_epoch": profile.build.source_date_epoch,
        "environment": dict(profile.build.environment),
        **made.parameters(profile, locks.get("source", ())),
    }


def _only_wheel(produced: Path, out: Path) -> Path:
    wheels = sorted(produced.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildError(
            "the build did not produce exactly one wheel",
            expected="1",
            found=", ".join(w.name for w in wheels) or "none",
        )
    target = out / wheels[0].name
    with storage_errors("write", target):
        shutil.copyfile(wheels[0], target)
        # Modes of build products say nothing; a published file is readable by all.
        target.chmod(0o644)
    return target


def _json(path: Path, default: Any) -> Any:
    return json.loads(path.read_text("utf-8")) if path.is_file() else default


def _counters(path: Path) -> dict[str, int]:
    if not path.is_file():
        return {}
    pairs = re.findall(r"^(\w+)\t(\d+)$", path.read_text("utf-8"), re.M)
    wanted = ("direct_cache_hit", "preprocessed_cache_hit", "cache_miss")
    return {name: int(value) for name, value in pairs if name in wanted}
