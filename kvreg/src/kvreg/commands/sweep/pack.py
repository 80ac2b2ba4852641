"""``kvreg sweep pack``."""

from pathlib import Path

import click

from kvreg.commands.sweep.options import folder_argument
from kvreg.console import emit, handled, human_bytes, json_option
from kvreg.sweep.evidence import Evidence, pack

unfinished_option = click.option(
    "--unfinished", is_flag=True, help="Also a sweep that has cells left."
)


@click.command("pack")
@folder_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write. Default: DIR.evidence.tar beside the directory.",
)
@unfinished_option
@json_option
@handled
def command(folder: Path, output: Path | None, unfinished: bool, as_json: bool) -> None:
    """Pack a sweep directory into one reproducible tar file.

    Every file is hashed, and held against what the ledger says of it. The same directory gives the
    same bytes. `registry attach` puts the file beside the runtime that it is evidence about.

    \b
    Examples:
      kvreg sweep pack sweep
      kvreg sweep pack sweep -o m4.evidence.tar
    """
    packed = pack(folder, output or default_output(folder), unfinished=unfinished)
    emit(packed, as_json, text)


def default_output(folder: Path) -> Path:
    """Where a directory is packed into."""
    place = folder.absolute()
    return place.with_name(f"{place.name}.evidence.tar")


def text(packed: Evidence) -> str:
    """A packed sweep for people."""
    states = ", ".join(f"{count} {state}" for state, count in packed.states.items())
    return (
        f"{packed.path}\n"
        f"  digest    {packed.digest}, {human_bytes(packed.size)}, {packed.files} files\n"
        f"  plan      {packed.plan}\n"
        f"  artifact  {packed.artifact or 'none: another engine'}\n"
        f"  cells     {states}" + (f"\n  label     {packed.label}" if packed.label else "")
    )
