"""``kvreg gc``."""

from pathlib import Path

import click

from kvreg.commands.options import home_option
from kvreg.console import emit, handled, human_bytes, json_option
from kvreg.garbage import DEFAULT_AGE, Garbage, Item, collect
from kvreg.home import Home
from kvreg.lockfile import LOCK_FILE, read_lockfile


@click.command("gc")
@click.option("--delete", "do_delete", is_flag=True, help="Delete; without this nothing changes.")
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    metavar="HOURS",
    help="Leave blobs alone that are younger: a pull may come for them again."
    f"  [default: {DEFAULT_AGE / 3600:.0f}]",
)
@click.option(
    "--lock",
    "locks",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep what this lock file names; may be given again."
    f"  Default: {LOCK_FILE} in the current directory, if there is one.",
)
@home_option
@json_option
@handled
def command(
    do_delete: bool,
    older_than: float | None,
    locks: tuple[Path, ...],
    home: Path | None,
    as_json: bool,
) -> None:
    """Find what nothing needs any more, and delete it with --delete.

    That is: blobs that no staged runtime and no lock file needs, what arrived of a blob before a
    pull was cut off, half-made runtimes of killed pulls, compiled files whose source is gone, and
    what another kvreg.pyz unpacked.
    Staged runtimes are never touched: `kvreg remove` removes them.

    \b
    Examples:
      kvreg gc
      kvreg gc --delete
      kvreg gc --delete --older-than 0 --lock ../kvreg.lock
    """
    files = [read_lockfile(path) for path in locks or (Path(LOCK_FILE),)]
    age = DEFAULT_AGE if older_than is None else older_than * 3600
    emit(collect(Home.find(home), files, age, delete=do_delete), as_json, _text)


def _text(found: Garbage) -> str:
    lines = [_line(item) for item in found.items]
    verb = "freed" if found.deleted else "would free"
    lines.append(f"{len(found.items)} things that nothing needs: {verb} {human_bytes(found.bytes)}")
    if found.young:
        lines.append(f"{found.young} blobs that nothing needs are young and stay for now")
    for folder in found.damaged:
        lines.append(f"all blobs stay, as a runtime cannot say what it needs: {folder}")
    if found.items and not found.deleted:
        lines.append("to delete them: kvreg gc --delete")
    return "\n".join(lines)


def _line(item: Item) -> str:
    count = f"  ({len(item.files)} files)" if item.files else ""
    return f"{item.kind:<8} {human_bytes(item.bytes):>10}  {item.path}{count}"
