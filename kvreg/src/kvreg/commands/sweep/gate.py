"""``kvreg sweep gate``."""

from pathlib import Path
from typing import Any

import click

from kvreg.commands.options import home_option
from kvreg.commands.sweep.options import engine_choice, engine_options, out_option, plan_argument
from kvreg.console import emit, handled, json_option, note, progress
from kvreg.sweep.gate import pass_gate, subjects
from kvreg.sweep.ledger import COMPATIBLE
from kvreg.sweep.plan import load_plan
from kvreg.sweep.session import Choices, Session


@click.command("gate")
@plan_argument
@out_option
@click.option("--model", "models", multiple=True, metavar="NAME", help="Only this model.")
@click.option("--again", is_flag=True, help="Also those that have a result already.")
@engine_options
@home_option
@json_option
@handled
def command(
    plan: Path,
    out: Path,
    models: tuple[str, ...],
    again: bool,
    profile: str | None,
    engine_command: str | None,
    sampler: str,
    caches: Path | None,
    home: Path | None,
    as_json: bool,
) -> None:
    """Load every model of a plan once and ask it for one answer.

    What does not pass is recorded and stays out of the performance table; that a model answers
    says nothing of its speed, and nothing of the quality of its answers. `kvreg sweep run` does the
    same by itself for what it runs; this command also takes the models with role "gate".

    \b
    Examples:
      kvreg sweep gate plan.toml --out sweep --profile t4x2-cu128
      kvreg sweep gate plan.toml --out sweep --profile t4x2-cu128 --model gemma-3-4b-it --again
    """
    load_plan(plan)
    raw = (plan / "plan.toml" if plan.is_dir() else plan).read_bytes()
    engine = engine_choice(profile, engine_command, home).make()
    choices = Choices(resume=True, sampler=sampler, caches=caches)
    rows: list[dict[str, Any]] = []
    with Session(out, raw, engine, choices) as session:
        chosen = [item for item in subjects(session) if not models or item.model in models]
        with progress(len(chosen), "gate", unit=" model") as bar:
            for subject in chosen:
                key = session.cache(subject.model, subject.tp, subject.settings).key
                event = session.ledger.read().gates.get(key)
                if again or event is None:
                    event = pass_gate(session, subject)
                rows.append(_row(event))
                if event["state"] != COMPATIBLE:
                    note(f"{event['model']} TP {event['tp']}: {event['state']}: {event['reason']}")
                bar.update(1)
    emit(rows, as_json, _table)


def _row(event: Any) -> dict[str, Any]:
    names = ("model", "revision", "tp", "workloads", "state", "reason", "max_gpu_memory_mib")
    return {name: event.get(name) for name in (*names, "seconds", "log_tail")}


def _table(rows: list[dict[str, Any]]) -> str:
    width = max((len(row["model"]) for row in rows), default=0)
    return "\n".join(
        f"{row['model']:<{width}}  TP {row['tp']}  {row['state']:<14}  {row['seconds']:.0f} s"
        + (f"  {row['reason']}" if row["reason"] else "")
        for row in rows
    )
