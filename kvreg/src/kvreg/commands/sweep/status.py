"""``kvreg sweep status``."""

from pathlib import Path

import click

from kvreg.commands.sweep.options import folder_argument
from kvreg.console import emit, handled, json_option
from kvreg.sweep.status import Status, duration, status_of


@click.command("status")
@folder_argument
@json_option
@handled
def command(folder: Path, as_json: bool) -> None:
    """Say how far a sweep is and what is left.

    Reads only; it may be asked while the sweep runs.

    \b
    Examples:
      kvreg sweep status sweep
      kvreg sweep status sweep --json
    """
    emit(status_of(folder), as_json, _text)


def _text(found: Status) -> str:
    states = ", ".join(f"{count} {state}" for state, count in found.states.items())
    lines = [
        f"plan      {found.plan}",
        f"cells     {found.done} of {found.cells} done: {states or '-'}",
        f"attempts  {found.broken_attempts} broken off, in {found.sessions} sessions",
        f"time      {duration(found.cell_s)} a cell, about {duration(found.left_s)} left",
    ]
    if found.label:
        lines.insert(1, f"label     {found.label}")
    if found.mean_other_s is not None and found.max_other_s is not None:
        lines.append(
            f"overhead  {found.mean_other_s:.2f} s a cell, at most {found.max_other_s:.2f} s"
        )
    for gate in found.gates:
        lines.append(
            f"gate      {gate['model']} TP {gate['tp']}: {gate['state']}"
            + (f": {gate['reason']}" if gate["reason"] else "")
        )
    if found.last:
        lines.append(f"last      {found.last['cell']} {found.last['state']}")
    return "\n".join(lines)
