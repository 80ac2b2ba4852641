"""The conditions of a study, and what two studies differ in.

Every condition belongs to a group, which is what a comparison varies: another GPU, another
interconnect, another runtime. What was not recorded is unknown, and unknown is not equal.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvreg.analysis.table import CellTable, rows_of
from kvreg.errors import ContractError, Problem

GROUPS = {
    "gpu": "which GPUs, and how many",
    "interconnect": "how the GPUs are connected",
    "driver": "NVIDIA's driver",
    "runtime": "artifact, engine and its version",
    "host": "torch, NCCL, Python, C library, processor",
    "settings": "engine options and environment, the same in both arms",
    "model": "which models, at which commits",
    "workload": "token shapes",
    "design": "concurrencies, TP degrees, repetitions, order",
    "protocol": "requests per cell, warm-up, time limits",
    "boundary": "the memory boundary",
    "tool": "this program's version",
    "unknown": "conditions that were not recorded",
}
"""What may be under study, or allowed to differ, with what it covers."""

_PLAN_GROUPS = {
    "models": "model",
    "workloads": "workload",
    "design": "design",
    "requests": "protocol",
    "limits": "protocol",
    "engine": "settings",
}
"""The plan's tables by group; name, summary and expected durations condition no result."""

_NEEDED = ("facts.gpus", "engine.version")
"""What every comparison must know of both sides."""


@dataclass(frozen=True)
class Condition:
    """One dotted key, its group, and its value as JSON-ready data (None: not recorded)."""

    key: str
    group: str
    value: Any


@dataclass(frozen=True)
class Difference:
    """A condition that is not shown to be equal."""

    key: str
    group: str
    a: Any
    b: Any

    def to_dict(self) -> dict[str, Any]:
        """The difference as JSON-ready data."""
        return {"key": self.key, "group": self.group, "a": self.a, "b": self.b}

    def __str__(self) -> str:
        return f"{self.key} ({self.group}): {_short(self.a)} / {_short(self.b)}"


def conditions_of(table: CellTable, directory: Path | None) -> dict[str, Condition]:
    """Every condition that is recorded for a study, by key."""
    found: list[Condition] = []
    if directory is None:
        found += _of_rows(table)
    else:
        found += _of_plan(directory)
        found += _of_facts(directory)
        found += _of_identity(table.identity)
    known = {condition.key: condition for condition in found}
    for key in _NEEDED:
        known.setdefault(key, Condition(key, "unknown", None))
    return known


def differences(a: Mapping[str, Condition], b: Mapping[str, Condition]) -> tuple[Difference, ...]:
    """What differs, or is not known to be equal, in order of the groups."""
    found = []
    for key in sorted({*a, *b}):
        one, two = a.get(key), b.get(key)
        first, second = (one.value if one else None), (two.value if two else None)
        groups = {side.group for side in (one, two) if side is not None}
        if first is None and second is None:
            if key in _NEEDED:
                found.append(Difference(key, "unknown", None, None))
        elif first != second:
            missing = one is None or two is None or first is None or second is None
            # a plan may leave an option out; what a host has is either known or not
            unknown = missing and not key.startswith("plan.")
            group = "unknown" if unknown else next(iter(groups - {"unknown"}))
            found.append(Difference(key, group, first, second))
    order = list(GROUPS)
    return tuple(sorted(found, key=lambda item: (order.index(item.group), item.key)))


def require_comparable(
    found: Sequence[Difference], variable: str | None, allowed: Iterable[str]
) -> str | None:
    """The variable under study, if nothing else differs but what is `allowed` (groups or keys).

    Without a `variable` the one group that differs is it. Raises `ContractError` naming every
    difference that stands in the way.
    """
    allowed = set(allowed)
    rest = [item for item in found if not ({item.key, item.group} & allowed)]
    groups = list(dict.fromkeys(item.group for item in rest))
    if variable is None and len(groups) == 1 and groups != ["unknown"]:
        return groups[0]
    standing = [item for item in rest if item.group != variable]
    if standing:
        names = list(dict.fromkeys(item.group for item in standing))
        single = variable or "one variable"
        raise ContractError(
            f"the sweeps differ in more than {single}",
            expected=f"differences in {single} alone",
            found=f"differences in {', '.join(dict.fromkeys(item.group for item in found))}",
            problems=[
                Problem(item.key, f"differs ({item.group})", _short(item.a), _short(item.b))
                for item in standing
            ],
            remedy=(
                "measure again with the rest unchanged, or say that you know: "
                + " ".join(f"--allow {name}" for name in names)
            ),
        )
    if variable is not None and not {variable, "unknown"} & {item.group for item in found}:
        raise ContractError(
            f"the sweeps do not differ in {variable}",
            expected=f"a difference in {variable}: {GROUPS[variable]}",
            found=", ".join(dict.fromkeys(item.group for item in found)) or "no difference at all",
        )
    return variable


def _of_rows(table: CellTable) -> Iterator[Condition]:
    """All that a bare table shows."""
    shapes = {row.workload: [row.input_tokens, row.output_tokens] for row in table}
    for name, shape in sorted(shapes.items()):
        yield Condition(f"plan.workloads.{name}.input_tokens", "workload", shape[0])
        yield Condition(f"plan.workloads.{name}.output_tokens", "workload", shape[1])
    for key, values in (
        ("tensor_parallel", {row.tp for row in table}),
        ("concurrency", {row.concurrency for row in table}),
    ):
        yield Condition(f"plan.design.{key}", "design", sorted(values))


def _of_plan(directory: Path) -> Iterator[Condition]:
    from kvreg.sweep.plan import load_plan

    for key, value in _flat(load_plan(directory).tree, ()):
        group = _PLAN_GROUPS.get(key[0])
        if key[:2] == ("limits", "memory_boundary_mib"):
            group = "boundary"
        if group is not None:
            yield Condition(".".join(("plan", *key)), group, value)


def _flat(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Leaves with their keys; tables in a list are known by their names, not their places."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _flat(value, (*path, key))
    elif isinstance(tree, list) and tree and all(isinstance(item, Mapping) for item in tree):
        for index, item in enumerate(tree):
            yield from _flat(item, (*path, str(item.get("name", index))))
    else:
        yield path, tree


def _of_identity(identity: Mapping[str, Any]) -> Iterator[Condition]:
    engine = identity.get("engine") or {}
    for key in ("artifact", "profile"):
        yield Condition(key, "runtime", identity.get(key))
    for key in ("command", "version"):
        yield Condition(f"engine.{key}", "runtime", engine.get(key))
    yield Condition("kvreg", "tool", identity.get("kvreg"))


def _of_facts(directory: Path) -> Iterator[Condition]:
    try:
        facts = json.loads((directory / "facts.json").read_bytes())
    except FileNotFoundError:
        return
    except ValueError as error:
        raise ContractError(f"{directory / 'facts.json'} is not JSON: {error}") from None
    gpus = facts.get("gpus")
    if gpus is not None:
        visible = [gpu for gpu in gpus if gpu.get("visible", True)]
        names = [
            [gpu.get(name) for name in ("name", "compute_capability", "memory_mib")]
            for gpu in visible
        ]
        yield Condition("facts.gpus", "gpu", names)
    if facts.get("topology") is not None:
        yield Condition("facts.topology", "interconnect", facts["topology"])
    for key, group in (
        ("driver.version", "driver"),
        ("torch.version", "host"),
        ("nccl.loaded.version", "host"),
        ("python.version", "host"),
        ("system.glibc", "host"),
        ("system.cpu.model", "host"),
        ("system.cpu.usable", "host"),
    ):
        value: Any = facts
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        yield Condition(f"facts.{key}", group, value)


def _short(value: Any) -> str:
    if value is None:
        return "not recorded"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else f"{text[:97]}..."


def open_study(path: Path) -> tuple[CellTable, dict[str, Condition]]:
    """The rows and conditions of a sweep directory or a bare cell table."""
    from kvreg.analysis.table import read_cells

    if path.is_dir():
        table = rows_of(path)
        return table, conditions_of(table, path)
    table = read_cells(path)
    return table, conditions_of(table, None)
