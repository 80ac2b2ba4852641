"""The engine that serves: what is run, with which options and environment.

`vllm serve` of an activated runtime, or another OpenAI-compatible server that takes the same
arguments: ``COMMAND MODEL --port … --tensor-parallel-size … --<option> …``.
"""

import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvreg.activation import check_environment, find_runtime, variables
from kvreg.engine import for_command
from kvreg.errors import ContractError, KvregError, Problem, UsageError
from kvreg.home import Home
from kvreg.model.activation import Settings
from kvreg.model.canonical import canonical_json
from kvreg.model.digest import sha256_bytes
from kvreg.settings import require_trusted, required_keys
from kvreg.sweep.cells import Cell
from kvreg.sweep.plan import Plan
from kvreg.sweep.reading import Setting

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Engine:
    """A command in an environment; `artifact` and `profile` are digests, None for other servers."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(hash=False, repr=False)
    version: str | None
    artifact: str | None
    profile: str | None
    rules: Settings = field(default_factory=Settings)
    """What the profile sets by default of the engine's options, and what it denies."""
    variables: Settings = field(default_factory=Settings)
    """The same of environment variables."""

    def identity(self) -> dict[str, Any]:
        """What goes into ``identity.json``."""
        return {"command": list(self.command), "version": self.version}

    def cache_key(self, plan: Plan, model: str, tp: int, settings: Mapping[str, Setting]) -> str:
        """Hex name of what compile and kernel caches may be shared by."""
        chosen = plan.model(model)
        tree = {
            "engine": self.identity(),
            "artifact": self.artifact,
            "repository": chosen.repository,
            "revision": chosen.revision,
            "tp": tp,
            "settings": dict(settings),
            "environment": dict(plan.environment),
        }
        return sha256_bytes(canonical_json(tree)).removeprefix("sha256:")[:32]

    def arguments(
        self, plan: Plan, model: str, tp: int, settings: Mapping[str, Setting], port: int
    ) -> list[str]:
        """The whole command line; `ContractError` when it has what the profile denies."""
        chosen = plan.model(model)
        words = ["--host", HOST, "--port", str(port)]
        words += ["--served-model-name", model, "--tensor-parallel-size", str(tp)]
        if chosen.revision != "local":
            words += ["--revision", chosen.revision, "--tokenizer-revision", chosen.revision]
        for name, value in settings.items():
            if value is True:
                words.append(f"--{name}")
            elif value is not False:
                words += [f"--{name}", str(value)]
        options = for_command(self.rules, words, "this profile").words
        return [*self.command, chosen.repository, *options]

    def check(self, plan: Plan) -> None:
        """Raise `ContractError` when the plan asks for what the profile denies."""
        if denied := self.variables.denied(plan.environment):
            raise ContractError(
                "the plan sets variables that this profile cannot run with",
                problems=[Problem(rule.name, rule.reason, found=value) for rule, value in denied],
                remedy="take them out of [engine.environment]",
            )
        for model in plan.models:
            for load in plan.workloads:
                self.arguments(plan, model.name, 1, plan.settings(model.name, load.name), 0)


@dataclass(frozen=True)
class EngineChoice:
    """How the engine was chosen: it is made anew on every machine that serves."""

    profile: str | None
    command: str | None
    home: Path | None

    def make(self) -> Engine:
        """The engine here; `UsageError` when the choice is none."""
        if self.profile and self.command:
            raise UsageError("--profile and --engine-command exclude each other")
        if self.command:
            return other_engine(self.command)
        if self.profile:
            return staged_engine(self.profile, self.home)
        raise UsageError(
            "there is no engine",
            expected="--profile PROFILE, --engine-command CMD or an active runtime",
            remedy="for instance: --profile t4x2-cu128",
        )


def staged_engine(profile: str, home: Path | None = None) -> Engine:
    """`vllm serve` of the staged runtime of a profile. Raises what finding it raises."""
    place = Home.find(home)
    runtime = find_runtime(place, profile)
    require_trusted(runtime, required_keys())
    check_environment(runtime.profile(), os.environ)
    environment = {**os.environ, **variables(runtime, place, os.environ)}
    version = next((wheel.version for wheel in runtime.wheels if wheel.role == "native"), None)
    return Engine(
        command=("vllm", "serve"),
        environment=environment,
        version=version,
        artifact=runtime.manifest_digest,
        profile=runtime.profile_digest,
        rules=runtime.profile().runtime.engine,
        variables=runtime.profile().runtime.environment,
    )


def other_engine(command: str) -> Engine:
    """The engine of ``--engine-command``; its version is what ``COMMAND --version`` prints."""
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise UsageError(f"the engine's command cannot be read: {error}") from None
    if not words:
        raise UsageError("the engine's command is empty")
    # An activated runtime may be what runs it.
    return Engine(
        command=words,
        environment=dict(os.environ),
        version=_version(words),
        artifact=os.environ.get("KVREG_MANIFEST_DIGEST"),
        profile=os.environ.get("KVREG_PROFILE_DIGEST"),
    )


def cell_environment(
    engine: Engine, plan: Plan, caches: Mapping[str, str], cell: Cell | None, attempt: int
) -> dict[str, str]:
    """All variables of a server; the cell is named in them, for its log and its test doubles."""
    named = {"KVREG_CELL": cell.id, "KVREG_ATTEMPT": str(attempt)} if cell else {}
    unset = ("KVREG_CELL", "KVREG_ATTEMPT")
    inherited = {key: value for key, value in engine.environment.items() if key not in unset}
    # So that CUDA counts GPUs as NVML does.
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {**order, **inherited, **plan.environment, **caches, **named}


def _version(command: tuple[str, ...]) -> str | None:
    try:
        result = subprocess.run(
            [*command, "--version"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise KvregError(
            "the engine's command does not exist", found=command[0], remedy="fix --engine-command"
        ) from None
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = result.stdout.strip().splitlines()
    return lines[-1][:100] if result.returncode == 0 and lines else None
