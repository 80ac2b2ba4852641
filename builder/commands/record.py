"""`builder record`"""

from __future__ import annotations

from pathlib import Path

import click

from kvreg.console import handled


@click.command()
@click.argument("target")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the page there instead of printing it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the record itself.")
@handled
def record(target: str, output: Path | None, as_json: bool) -> None:
    """Show a build record as a page.

    TARGET is a profile's name (its finished build) or a record file.

    \b
    Examples:
      builder record t4-probe
      builder record docs/builds/t4x2-cu128-20261201.json -o docs/builds/t4x2-cu128-20261201.md
    """
    import json

    from builder.layout import find_checkout
    from builder.product import read_product
    from builder.record import page, read_record

    path = Path(target)
    found = read_record(path) if path.is_file() else read_product(find_checkout(), target).record
    text = json.dumps(found, indent=1) + "\n" if as_json else page(found)
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
