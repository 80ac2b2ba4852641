"""Frozen sweep plans: ``plan.toml``, validated with all problems at once, and its digest.

The digest is the SHA-256 over the canonical JSON (RFC 8785) of the parsed TOML, so comments and
layout may change and numbers may not.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kvreg import toml
from kvreg.errors import ContractError, NotFoundError, Problem
from kvreg.model.canonical import canonical_json
from kvreg.model.digest import sha256_bytes
from kvreg.sweep.cells import Cell, cell_id, shards_of, shuffled
from kvreg.sweep.design import (
    FRESH_SERVER,
    GATE_ONLY,
    ORDERS,
    PERFORMANCE,
    WITHIN_SERVER,
    Design,
    Expected,
    Limits,
    Model,
    Prompt,
    Requests,
    Workload,
)
from kvreg.sweep.reading import PlanReader, Setting

SCHEMA = 1

# What the sweep passes itself, and so no plan may.
OWN_OPTIONS = frozenset(
    {
        "host",
        "port",
        "model",
        "served-model-name",
        "revision",
        "tokenizer-revision",
        "tensor-parallel-size",
    }
)

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_WORKLOAD = r"[a-z0-9][a-z0-9_-]*"
_REVISION = r"[0-9a-f]{40}|local"
_REVISION_MEANING = "a commit of 40 hex digits, or 'local' for a directory"


@dataclass(frozen=True)
class Plan:
    """A valid plan. `tree` is the parsed TOML that the digest is of."""

    name: str
    summary: str
    design: Design
    models: tuple[Model, ...]
    workloads: tuple[Workload, ...]
    engine: Mapping[str, Setting] = field(hash=False)
    environment: Mapping[str, str] = field(hash=False)
    requests: Requests
    limits: Limits
    expected: Expected
    tree: Mapping[str, Any] = field(hash=False, repr=False)

    @cached_property
    def digest(self) -> str:
        """``sha256:<hex>`` of the canonical JSON of the plan."""
        return sha256_bytes(canonical_json(self.tree))

    @property
    def label(self) -> str | None:
        """What results must carry when they are no paired comparison of fresh servers."""
        within = self.design.replication == WITHIN_SERVER
        return "within-server, descriptive" if within else None

    def model(self, name: str) -> Model:
        """The model of a name; `KeyError` if there is none."""
        return {item.name: item for item in self.models}[name]

    def workload(self, name: str) -> Workload:
        """The workload of a name; `KeyError` if there is none."""
        return {item.name: item for item in self.workloads}[name]

    def settings(self, model: str, workload: str | None = None) -> dict[str, Setting]:
        """The engine's options for a model (and workload): the same for every arm."""
        special = self.workload(workload).engine if workload else {}
        return {**self.engine, **self.model(model).engine, **special}

    def cells(self) -> tuple[Cell, ...]:
        """All cells in run order; see `kvreg.sweep.cells`."""
        return self._cells

    def shards(self) -> tuple[tuple[str, tuple[Cell, ...]], ...]:
        """All shards in run order with their cells."""
        return shards_of(self._cells)

    @cached_property
    def _cells(self) -> tuple[Cell, ...]:
        models = [model.name for model in self.models if model.role == PERFORMANCE]
        if self.design.replication == WITHIN_SERVER:
            return tuple(cell for model in models for cell in self._within_server(model))
        return tuple(
            cell
            for model in models
            for repetition in range(1, self.design.repetitions + 1)
            for workload in self.workloads
            for cell in self._shard(model, workload, repetition)
        )

    def _shard(self, model: str, workload: Workload, repetition: int) -> list[Cell]:
        shard = f"{model}.{workload.name}.r{repetition}"
        levels: list[int] = list(workload.concurrency or self.design.concurrency)
        mixed = self.design.order == "interleaved"
        if mixed:
            levels = shuffled(levels, self.design.seed, shard)
        cells = []
        for level in levels:
            arms: list[int] = list(self.design.tensor_parallel)
            if mixed:
                arms = shuffled(arms, self.design.seed, shard, level)
            cells += [self._cell(model, workload, level, arm, repetition, shard) for arm in arms]
        return cells

    def _within_server(self, model: str) -> list[Cell]:
        cells = []
        for arm in self.design.tensor_parallel:
            server = f"{model}.tp{arm}"
            for repetition in range(1, self.design.repetitions + 1):
                for workload in self.workloads:
                    for level in workload.concurrency or self.design.concurrency:
                        cell = self._cell(model, workload, level, arm, repetition, server, server)
                        cells.append(cell)
        return cells

    def _cell(
        self,
        model: str,
        workload: Workload,
        concurrency: int,
        tp: int,
        repetition: int,
        shard: str,
        server: str | None = None,
    ) -> Cell:
        name = cell_id(model, workload.name, concurrency, tp, repetition)
        return Cell(
            id=name,
            model=model,
            workload=workload.name,
            input_tokens=workload.input_tokens,
            output_tokens=workload.output_tokens,
            concurrency=concurrency,
            tp=tp,
            repetition=repetition,
            shard=shard,
            server=server or name,
        )


def load_plan(path: Path) -> Plan:
    """Read and validate a plan; a sweep directory stands for its ``plan.toml``.

    Raises `NotFoundError` when there is no such file and `ContractError` with every problem.
    """
    path = path / "plan.toml" if path.is_dir() else path
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(
            f"there is no plan {path}",
            remedy="make one: kvreg sweep plan --preset smoke -o plan.toml",
        ) from None
    return parse_plan(raw, str(path))


def parse_plan(raw: bytes, where: str = "plan.toml") -> Plan:
    """Validate the bytes of a plan; `where` names them in messages."""
    try:
        tree = toml.loads(raw.decode("utf-8"))
    except ValueError as error:
        raise ContractError(f"{where} is not valid TOML: {error}") from None
    problems: list[Problem] = []
    plan = _plan(PlanReader(tree, where, "", problems), tree)
    if problems:
        count = f"{len(problems)} problem" + ("s" if len(problems) > 1 else "")
        raise ContractError(f"the plan is invalid: {count}", problems=problems)
    return plan


def _plan(root: PlanReader, tree: Mapping[str, Any]) -> Plan:
    if (schema := root.integer("schema", 1)) != SCHEMA:
        root.report("schema", "unknown schema", expected=str(SCHEMA), found=str(schema))
    engine = root.table("engine", optional=True)
    plan = Plan(
        name=root.text("name", _NAME, "letters, digits, . _ -"),
        summary=root.text("summary"),
        design=_design(root.table("design")),
        models=tuple(_model(item) for item in root.tables("models")),
        workloads=tuple(_workload(item) for item in root.tables("workloads")),
        engine=engine.settings("options", OWN_OPTIONS),
        environment=engine.mapping(
            "environment", r"[A-Za-z_]\w*", "an environment variable's name"
        ),
        requests=_requests(root.table("requests")),
        limits=_limits(root.table("limits")),
        expected=_expected(root.table("expected")),
        tree=tree,
    )
    engine.finish()
    root.finish()
    _check_names(root, plan)
    _check_lengths(root, plan)
    return plan


def _design(table: PlanReader) -> Design:
    design = Design(
        tensor_parallel=table.ascending("tensor_parallel"),
        concurrency=table.ascending("concurrency"),
        repetitions=table.integer("repetitions", 1),
        seed=table.integer("seed", 0),
        order=table.choice("order", ORDERS),
        replication=table.choice("replication", (FRESH_SERVER, WITHIN_SERVER)),
    )
    table.finish()
    return design


def _model(table: PlanReader) -> Model:
    model = Model(
        name=table.text("name", _NAME, "letters, digits, . _ -"),
        repository=table.text("repository"),
        revision=table.text("revision", _REVISION, _REVISION_MEANING),
        role=table.maybe_text("role", f"{PERFORMANCE}|{GATE_ONLY}", "a role", PERFORMANCE),
        engine=table.settings("options", OWN_OPTIONS),
    )
    table.finish()
    return model


def _workload(table: PlanReader) -> Workload:
    prompts = tuple(_prompt(item) for item in table.tables("prompts"))
    workload = Workload(
        name=table.text("name", _WORKLOAD, "lower-case letters, digits, _ -"),
        input_tokens=None if prompts else table.integer("input_tokens", 1),
        output_tokens=table.integer("output_tokens", 1),
        concurrency=table.ascending("concurrency", optional=True),
        prompts=prompts,
        engine=table.settings("options", OWN_OPTIONS),
    )
    table.finish()
    return workload


def _prompt(table: PlanReader) -> Prompt:
    language = table.text("language", r"[a-z]{2,3}", "a language code such as 'ar'")
    text = table.paragraph("text")
    table.finish()
    return Prompt(language, text)


def _requests(table: PlanReader) -> Requests:
    ids = table.ascending("token_ids")
    if len(ids) != 2:
        table.report("token_ids", "wrong value", expected="[first, end]", found=repr(list(ids)))
        ids = (1, 2)
    requests = Requests(
        precision=table.number("precision", 0, 1),
        warmup_waves=table.integer("warmup_waves", 0),
        pilot_waves=table.integer("pilot_waves", 0),
        min_waves=table.integer("min_waves", 1),
        max_requests=table.integer("max_requests", 1),
        min_seconds=table.maybe_number("min_seconds", 0.0),
        max_seconds=table.number("max_seconds"),
        token_ids=(ids[0], ids[1]),
    )
    table.finish()
    return requests


def _limits(table: PlanReader) -> Limits:
    limits = Limits(
        memory_boundary_mib=table.integer("memory_boundary_mib", 1),
        idle_tolerance_mib=table.integer("idle_tolerance_mib", 0),
        **{key: table.number(key) for key in ("start_s", "stall_s", "measure_s")},
        **{key: table.number(key) for key in ("stop_s", "idle_s")},
        attempts=table.whole("attempts", 1, default=1),
    )
    table.finish()
    return limits


def _expected(table: PlanReader) -> Expected:
    names = ("start_s", "warm_s", "measure_s", "stop_s", "other_s")
    expected = Expected(**{name: table.number(name) for name in names})
    table.finish()
    return expected


def _check_names(root: PlanReader, plan: Plan) -> None:
    for key, items in (("models", plan.models), ("workloads", plan.workloads)):
        names = [item.name for item in items]
        if not names:
            root.report(key, "there is none", expected="at least one")
        for name in sorted({name for name in names if name and names.count(name) > 1}):
            root.report(key, "a name is used twice", found=name)
    if plan.models and all(model.role == GATE_ONLY for model in plan.models):
        root.report("models", "no model is measured", expected=f"one with role {PERFORMANCE!r}")
    for model in plan.models:
        if model.revision == "local" and not re.match(r"[./~]", model.repository):
            what = "a model from a registry needs its commit"
            root.report("models", what, expected=_REVISION_MEANING, found=model.name)
    if plan.label and (special := [load.name for load in plan.workloads if load.engine]):
        what = "one server cannot have the options of several workloads"
        root.report("workloads", what, expected="no options", found=special[0])
    texts = [workload.name for workload in plan.workloads if workload.prompts]
    if texts and plan.design.replication == FRESH_SERVER:
        what = "prompts as texts have no exact token count"
        root.report("workloads", what, expected=f"replication {WITHIN_SERVER!r}", found=texts[0])


def _check_lengths(root: PlanReader, plan: Plan) -> None:
    rules = plan.requests
    if rules.min_seconds > rules.max_seconds:
        root.report(
            "requests.min_seconds",
            "longer than max_seconds",
            expected=f"at most {rules.max_seconds:g}",
            found=f"{rules.min_seconds:g}",
        )
    if rules.min_seconds and not rules.pilot_waves:
        what = "there is no pilot to know the pace by"
        root.report("requests.min_seconds", what, expected="pilot_waves of at least 1")
    if plan.requests.token_ids[1] - plan.requests.token_ids[0] < 2:
        root.report("requests.token_ids", "there is no choice", expected="at least two tokens")
    highest = max((max(w.concurrency, default=0) for w in plan.workloads), default=0)
    highest = max(highest, *plan.design.concurrency)
    if plan.requests.max_requests < highest * plan.requests.min_waves:
        root.report(
            "requests.max_requests",
            "too few for the least number of waves at the highest concurrency",
            expected=f"at least {highest * plan.requests.min_waves}",
            found=str(plan.requests.max_requests),
        )
    for model in plan.models:
        for load in plan.workloads:
            longest = {**plan.engine, **model.engine, **load.engine}.get("max-model-len")
            needed = (load.input_tokens or 0) + load.output_tokens
            if isinstance(longest, int) and not isinstance(longest, bool) and needed > longest:
                root.report(
                    f"workloads {load.name}",
                    "longer than the engine's max-model-len",
                    expected=f"at most {longest} tokens with {model.name}",
                    found=str(needed),
                )
