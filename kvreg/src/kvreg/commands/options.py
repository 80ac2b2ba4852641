"""Options that several commands share."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kvreg.facts import HostFacts

home_option = click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where runtimes are kept. Default: $KVREG_HOME, else ~/.local/share/kvreg.",
)

facts_option = click.option(
    "--facts",
    "facts_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Use the facts in this file (kvreg facts --output) instead of this host's.",
)


def host_facts(facts_file: Path | None, home: Path | None = None) -> "HostFacts":
    """The facts of `facts_option`: those of the file, else this host's.

    Raises what `kvreg.facts.load` raises.
    """
    from kvreg.facts import collect, load

    return load(facts_file) if facts_file else collect(home=home)
