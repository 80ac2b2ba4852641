"""``kvreg sweep``: a group that imports only the subcommand that is run."""

import click

from kvreg.lazy import Entry, LazyGroup

COMMANDS = {
    "plan": Entry(
        "kvreg.commands.sweep.plan", "Write a plan from a preset, or validate one and cost it."
    ),
    "gate": Entry(
        "kvreg.commands.sweep.gate", "Load every model of a plan once and ask it for one answer."
    ),
    "run": Entry(
        "kvreg.commands.sweep.run", "Run a plan's cells, each in a fresh server, and record them."
    ),
    "status": Entry("kvreg.commands.sweep.status", "Say how far a sweep is and what is left."),
    "analyze": Entry(
        "kvreg.commands.sweep.analyze",
        "Judge where a higher TP degree starts to pay, from a sweep or a table of cells.",
    ),
    "compare": Entry(
        "kvreg.commands.sweep.compare", "Put two sweeps side by side that differ in one variable."
    ),
    "pack": Entry(
        "kvreg.commands.sweep.pack", "Pack a sweep directory into one reproducible tar file."
    ),
    "publish": Entry(
        "kvreg.commands.sweep.publish",
        "Pack a sweep and attach it to the exact runtime artifact that it ran.",
    ),
    "report": Entry(
        "kvreg.commands.sweep.report", "Write tables, figures and one page that holds everything."
    ),
}


@click.group("sweep", cls=LazyGroup, table=COMMANDS)
def command() -> None:
    """Tensor-parallel sweeps: plan, run, analyse, report.

    A plan is frozen data with a digest. Every cell of it gets a fresh server, exact token counts
    and a terminal state: MEASURED, RESOURCE_GATED (never a zero), INCOMPATIBLE or FAILED. A sweep
    that was stopped goes on in another session.

    \b
    Examples:
      kvreg sweep plan --preset m4 -o plan.toml
      kvreg sweep run plan.toml --out sweep --profile t4x2-cu128
      kvreg sweep status sweep
      kvreg sweep analyze sweep
      kvreg sweep analyze --cells cells.csv
    """
