"""``kvreg list``."""

from pathlib import Path
from typing import Any

import click

from kvreg.commands.options import home_option
from kvreg.console import emit, handled, human_bytes, json_option
from kvreg.errors import KvregError
from kvreg.home import Home
from kvreg.runtime import read_runtime, staged_folders


@click.command("list")
@home_option
@json_option
@handled
def command(home: Path | None, as_json: bool) -> None:
    """List the runtimes that are staged here.

    \b
    Examples:
      kvreg list
      kvreg list --home ./home --json
    """
    rows = [_row(folder) for folder in staged_folders(Home.find(home))]
    emit(rows, as_json, _table)


def _row(folder: Path) -> dict[str, Any]:
    try:
        return {**read_runtime(folder).to_dict(), "folder": str(folder)}
    except KvregError as error:
        return {"folder": str(folder), "error": error.to_dict()}


def _table(rows: list[dict[str, Any]]) -> str:
    return "\n".join(map(_text, rows)) if rows else "no runtime is staged; see: kvreg pull --help"


def _text(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"damaged: {row['folder']}"
    wheels = ", ".join(f"{wheel['name']} {wheel['version']}" for wheel in row["wheels"])
    return (
        f"{row['profile']['name']}  {wheels}  {human_bytes(row['bytes'])}  {row['created']}\n"
        f"  profile {row['profile']['digest']}\n"
        f"  in      {row['folder']}"
    )
