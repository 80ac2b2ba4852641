"""Options that several commands share."""

from pathlib import Path

import click

home_option = click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where runtimes are kept. Default: $KVREG_HOME, else ~/.local/share/kvreg.",
)
