"""``kvreg sweep run``."""

import math
import time
from pathlib import Path
from typing import Any

import click

from kvreg.commands.options import home_option
from kvreg.commands.sweep.options import engine_choice, engine_options, out_option, plan_argument
from kvreg.console import emit, handled, json_option
from kvreg.errors import UsageError
from kvreg.facts import require_own_host
from kvreg.sweep.budget import Budget
from kvreg.sweep.cells import Cell
from kvreg.sweep.engine import EngineChoice
from kvreg.sweep.gate import admitted
from kvreg.sweep.ledger import FAILED
from kvreg.sweep.plan import load_plan, parse_plan
from kvreg.sweep.progress import Progress, in_words
from kvreg.sweep.runner import LocalSession
from kvreg.sweep.schedule import Choice, split
from kvreg.sweep.session import Choices, Session
from kvreg.sweep.status import duration, pending, status


@click.command("run")
@plan_argument
@out_option
@click.option("--shard", metavar="K/N", help="Only the K-th of N parts; see `kvreg sweep plan`.")
@click.option("--resume", is_flag=True, help="Go on with the sweep that DIR holds.")
@click.option("--retry-failed", is_flag=True, help="With --resume: try FAILED cells again.")
@click.option(
    "--hours",
    type=click.FloatRange(min=0, min_open=True),
    help="Begin no matched cells that would end after so many hours.",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="The same in seconds.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where servers run: here, or on the nodes of a Ray cluster.",
)
@click.option(
    "--ray-address",
    "address",
    default="auto",
    show_default=True,
    help="With --engine ray: the cluster.",
)
@engine_options
@home_option
@json_option
@handled
def command(
    plan: Path,
    out: Path,
    shard: str | None,
    resume: bool,
    retry_failed: bool,
    hours: float | None,
    budget: float | None,
    engine: str,
    address: str,
    profile: str | None,
    engine_command: str | None,
    sampler: str,
    caches: Path | None,
    home: Path | None,
    as_json: bool,
) -> None:
    """Run a plan's cells, each in a fresh server, and record them.

    A cell that crashes, hangs or passes the memory boundary ends in a state with its reason, and
    the next one begins. The ledger is on the disk after every cell: what is killed goes on with
    --resume at the next cell, and the broken attempt stays on record. With --hours or --budget a
    session ends by itself between matched cells: the arms of one concurrency and repetition.

    \b
    Examples:
      kvreg sweep run plan.toml --out sweep --profile t4x2-cu128
      kvreg sweep run plan.toml --out sweep --profile t4x2-cu128 --shard 1/3 --hours 11.5
      kvreg sweep run plan.toml --out sweep --profile t4x2-cu128 --resume
      kvreg sweep run plan.toml --out sweep --profile t4x2-cu128 --resume --budget 540
      kvreg sweep run plan.toml --out sweep --engine-command "python my_server.py"
      kvreg sweep run plan.toml --out sweep --engine ray --profile t4x2-cu128
    """
    require_own_host("measuring")
    began = time.monotonic()
    if hours is not None and budget is not None:
        raise UsageError("--hours and --budget exclude each other")
    seconds = hours * 3600 if hours is not None else budget
    load_plan(plan)  # reports every problem before anything is made
    raw = (plan / "plan.toml" if plan.is_dir() else plan).read_bytes()
    wanted = parse_plan(raw).cells()
    if shard is not None:
        choice = Choice.parse(shard)
        wanted = split(parse_plan(raw), choice.of)[choice.number - 1].cells
    chosen = engine_choice(profile, engine_command, home)
    choices = Choices(resume=resume, sampler=sampler, caches=caches)
    with open_session(engine, out, raw, chosen, choices, address) as session:
        cells = pending(wanted, session.ledger.read(), (FAILED,) if retry_failed else ())
        with Progress(session.plan, len(cells)) as reporter:
            ends = math.inf if seconds is None else began + seconds
            time_left = Budget(session.plan, cells, ends)

            def ready(cell: Cell) -> bool:
                # A node of a cluster has caches of its own.
                return engine != "local" or admitted(session, cell)

            def more() -> bool:
                done = {result.cell for result in reporter.results}
                return time_left.allows(done, session.ledger.read().results, ready)

            session.run(cells, reporter.done, more)
            ran = [_row(result) for result in reporter.results]
        summary = {
            "directory": str(out),
            "ran": len(ran),
            "left_of_shard": len(cells) - len(ran),
            "results": ran,
            "status": status(session.plan, session.ledger.read()).to_dict(),
        }
    emit(summary, as_json, _text)


def open_session(
    engine: str, out: Path, raw: bytes, chosen: EngineChoice, choices: Choices, address: str
) -> Session:
    """The session of an ``--engine``."""
    if engine == "ray":
        from kvreg.sweep.cluster import ClusterSession

        return ClusterSession(out, raw, chosen, choices, address)
    return LocalSession(out, raw, chosen.make(), choices)


def _row(result: Any) -> dict[str, Any]:
    return {"cell": result.cell, "state": result.state, "text": in_words(result)}


def _text(summary: dict[str, Any]) -> str:
    found = summary["status"]
    states = ", ".join(f"{count} {state}" for state, count in found["states"].items())
    lines = [
        f"{summary['ran']} cells ran; {found['done']} of {found['cells']} are done: {states or '-'}"
    ]
    if found["label"]:
        lines.append(f"label: {found['label']}")
    if found["done"] < found["cells"]:
        lines.append(f"left: about {duration(found['left_s'])}; go on with --resume")
    return "\n".join(lines)
