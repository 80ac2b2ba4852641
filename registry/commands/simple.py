"""``registry index``."""

from pathlib import Path

import click

from kvreg.console import emit, human_bytes, note, progress
from registry.commands.options import store_argument, store_only, subcommand
from registry.simple import SimpleIndex, write_index
from registry.store import open_store


@subcommand("index oci-layout:dist/registry dist/index\nindex ghcr.io/you/runtimes dist/index")
@store_argument
@click.argument("folder", metavar="OUT", type=click.Path(path_type=Path))
def index_command(store_reference: str, folder: Path, as_json: bool) -> None:
    """Write a package index over the wheels of all tagged runtimes, for plain pip and uv.

    OUT becomes static files for any web server; an index that is there is renewed. The runtimes'
    dependencies are not in it. Whoever installs vLLM with plain pip may have packages of the
    notebook replaced; `kvreg pull` never does.
    """
    with open_store(store_only(store_reference)) as store, progress(None, "indexing") as bar:
        done = write_index(store, folder, bar.update)
    emit(done, as_json, _text)
    if not as_json:
        note(
            f"next: python -m http.server --directory {folder} 8000\n"
            "      pip install --no-deps --index-url http://127.0.0.1:8000/simple/ PACKAGE"
        )


def _text(found: SimpleIndex) -> str:
    lines = [f"{found.folder / 'simple'}"]
    for wheel in found.wheels:
        size = human_bytes(wheel.descriptor.size)
        lines.append(f"  {wheel.filename}  {size}  of {', '.join(wheel.item.tags)}")
    for wheel in found.superseded:
        lines.append(
            f"  not {wheel.filename} of {', '.join(wheel.item.tags)}: another build counts"
        )
    if not found.wheels:
        lines.append("  no wheels: the store has no tagged runtime")
    return "\n".join(lines)
