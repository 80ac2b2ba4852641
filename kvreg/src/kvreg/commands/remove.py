"""``kvreg remove``."""

import sys
from pathlib import Path
from typing import Any

import click

from kvreg.commands.options import home_option, known_profiles
from kvreg.console import emit, handled, human_bytes, json_option
from kvreg.errors import UsageError
from kvreg.home import Home
from kvreg.removal import Target, find_target, remove


@click.command("remove")
@click.argument("profiles", nargs=-1, required=True, shell_complete=known_profiles)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Remove even what a running process uses.")
@home_option
@json_option
@handled
def command(
    profiles: tuple[str, ...], yes: bool, force: bool, home: Path | None, as_json: bool
) -> None:
    """Remove staged runtimes, and say what that freed.

    Asks first; where nobody can be asked, --yes is needed. A runtime that a process runs from is
    not removed. Blobs stay, so that pulling again needs no network: `kvreg gc` collects them.

    \b
    Examples:
      kvreg remove t4x2-cu128
      kvreg remove t4x2-cu128 t4-probe --yes
      kvreg remove sha256:<profile digest> --yes --json
    """
    place = Home.find(home)
    targets = [find_target(place, text) for text in profiles]
    if not yes and not _confirmed(targets):
        raise UsageError("nothing was removed", remedy="answer y, or add --yes")
    gone = [remove(place, target, force=force) for target in targets]
    result = {
        "removed": [target.to_dict() for target in gone],
        "bytes": sum(target.bytes for target in gone),
    }
    emit(result, as_json, _text)


def _confirmed(targets: list[Target]) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            "removing asks first, and nobody can be asked here",
            expected="a terminal, or --yes",
        )
    for target in targets:
        click.echo(f"{target.text}  {human_bytes(target.bytes)}  {target.folder}", err=True)
    return click.confirm("remove?", err=True)


def _text(result: dict[str, Any]) -> str:
    lines = [f"removed {item['profile']}: {item['files']} files" for item in result["removed"]]
    lines.append(f"freed {human_bytes(result['bytes'])}; the blobs stay until: kvreg gc --delete")
    return "\n".join(lines)
