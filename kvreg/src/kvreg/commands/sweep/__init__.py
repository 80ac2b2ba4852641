"""``kvreg sweep``: a group that imports only the subcommand that is run."""

import click

from kvreg.lazy import Entry, LazyGroup

COMMANDS = {
    "analyze": Entry(
        "kvreg.commands.sweep.analyze",
        "Judge where a higher TP degree starts to pay, from a sweep or a table of cells.",
    ),
    "report": Entry(
        "kvreg.commands.sweep.report", "Write tables, figures and one page that holds everything."
    ),
}


@click.group("sweep", cls=LazyGroup, table=COMMANDS)
def command() -> None:
    """Tensor-parallel sweeps: plan, run, analyse, report.

    \b
    Examples:
      kvreg sweep analyze --cells cells.csv
    """
