"""The ``kvreg`` command."""

import click

from kvreg import __version__


@click.group()
@click.version_option(__version__, prog_name="kvreg")
def main() -> None:
    """Verified, side-by-side vLLM runtimes for managed GPU notebooks."""
