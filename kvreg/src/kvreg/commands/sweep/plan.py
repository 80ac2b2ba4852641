"""``kvreg sweep plan``."""

import sys
from pathlib import Path
from typing import Any

import click

from kvreg.console import emit, handled, json_option, note
from kvreg.errors import UsageError
from kvreg.sweep.plan import Plan, load_plan, parse_plan
from kvreg.sweep.presets import NAMES, read_preset
from kvreg.sweep.schedule import expected_seconds, sessions
from kvreg.sweep.session import write_file
from kvreg.sweep.status import duration


@click.command("plan")
@click.argument("plan", type=click.Path(path_type=Path), required=False, metavar="[PLAN]")
@click.option("--preset", type=click.Choice(NAMES), help="Start from this design.")
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    help="For the preset `case`: a TOML file of prompts by language.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the preset to this file, to be edited.",
)
@click.option(
    "--hours",
    type=click.FloatRange(min=0, min_open=True),
    default=12.0,
    show_default=True,
    help="Length of a session; Kaggle's is 12 h.",
)
@json_option
@handled
def command(
    plan: Path | None,
    preset: str | None,
    prompts: Path | None,
    output: Path | None,
    hours: float,
    as_json: bool,
) -> None:
    """Write a plan from a preset, or validate one and cost it.

    A valid plan has a digest, which goes into everything that comes of it. The presets m1, m2 and
    m4 carry published designs, smoke is a test of minutes and case a study within one server.
    The expected time is that of the plan's [expected] table with cold caches in each session.

    \b
    Examples:
      kvreg sweep plan --preset m4 -o plan.toml
      kvreg sweep plan plan.toml --hours 12
      kvreg sweep plan --preset case --prompts prompts.toml -o case.toml
      kvreg sweep plan plan.toml --json
    """
    if (plan is None) == (preset is None):
        raise UsageError("name either a plan or a preset", remedy="see kvreg sweep plan --help")
    if plan is not None:
        if output or prompts:
            raise UsageError("--output and --prompts go with --preset")
        emit(_cost(load_plan(plan), hours), as_json, _text)
        return
    raw = read_preset(str(preset), prompts)
    if output is None:
        if as_json:
            emit(_cost(parse_plan(raw), hours), as_json, _text)
        else:
            sys.stdout.buffer.write(raw)
            sys.stdout.buffer.flush()
        return
    if output.exists():
        raise UsageError(f"{output} exists", remedy="choose another file, or remove it")
    write_file(output, raw)
    emit(_cost(parse_plan(raw), hours), as_json, _text)
    note(f"written to {output}")


def _cost(plan: Plan, hours: float) -> dict[str, Any]:
    try:
        parts = sessions(plan, hours)
    except UsageError as error:
        parts = []
        split: Any = error.to_dict()
    else:
        split = [
            {
                "shard": f"{part.number}/{part.of}",
                "shards": len(part.shards),
                "cells": len(part.cells),
                "seconds": part.seconds,
            }
            for part in parts
        ]
    design = plan.design
    return {
        "name": plan.name,
        "summary": plan.summary,
        "digest": plan.digest,
        "label": plan.label,
        "models": [
            {"name": m.name, "repository": m.repository, "revision": m.revision, "role": m.role}
            for m in plan.models
        ],
        "workloads": [
            {"name": w.name, "input_tokens": w.input_tokens, "output_tokens": w.output_tokens}
            for w in plan.workloads
        ],
        "concurrency": list(design.concurrency),
        "tensor_parallel": list(design.tensor_parallel),
        "repetitions": design.repetitions,
        "cells": len(plan.cells()),
        "shards": len(plan.shards()),
        "expected_seconds": expected_seconds(plan, plan.cells()),
        "session_hours": hours,
        "sessions": split,
    }


def _text(cost: dict[str, Any]) -> str:
    models = ", ".join(
        model["name"] + (" (gate only)" if model["role"] == "gate" else "")
        for model in cost["models"]
    )
    shapes = ", ".join(
        f"{load['name']} {load['input_tokens'] or 'texts'}/{load['output_tokens']}"
        for load in cost["workloads"]
    )
    lines = [
        f"{cost['name']}: {cost['summary']}",
        f"digest       {cost['digest']}",
        f"models       {models}",
        f"workloads    {shapes} (input/output tokens)",
        f"concurrency  {', '.join(map(str, cost['concurrency']))}",
        f"TP           {', '.join(map(str, cost['tensor_parallel']))}",
        f"cells        {cost['cells']} in {cost['shards']} shards, "
        f"{cost['repetitions']} repetitions",
        f"expected     {duration(cost['expected_seconds'])} in one session",
    ]
    if cost["label"]:
        lines.insert(1, f"label        {cost['label']}")
    found = cost["sessions"]
    if isinstance(found, dict):
        lines.append(f"sessions     {found['what']}: {found['found']}, {found['remedy']}")
        return "\n".join(lines)
    lines.append(f"sessions     {len(found)} of at most {cost['session_hours']:g} h")
    lines += [
        f"  --shard {part['shard']:<6} {part['shards']} shards, {part['cells']} cells, "
        f"{duration(part['seconds'])}"
        for part in found
    ]
    return "\n".join(lines)
