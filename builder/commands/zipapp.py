"""`builder zipapp`"""

from __future__ import annotations

from pathlib import Path

import click

from builder.commands.options import cache_option, open_cache
from kvreg.console import emit, handled, human_bytes, json_option, progress


@click.command()
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where to write it.  [default: dist/kvreg.pyz in the checkout]",
)
@click.option(
    "--lock", "renew", is_flag=True, help="Lock the newest packages to bring along first."
)
@cache_option
@json_option
@handled
def zipapp(output: Path | None, renew: bool, cache_root: Path | None, as_json: bool) -> None:
    """Make kvreg.pyz: the client, its profiles and what it needs, in one file.

    It runs on a bare Python 3.10 or later, with the host's click, packaging, tqdm and urllib3 where
    they will do, else with its own. The same checkout makes the same bytes.

    \b
    Examples:
      builder zipapp
      builder zipapp --output upload/kvreg.pyz --json
      builder zipapp --lock
    """
    from builder.client.zipapp import LOCK, lock_vendored, make_zipapp
    from builder.fetch import bytes_missing, fetch
    from builder.index import PackageIndex
    from builder.inputs import read_lock
    from builder.layout import find_checkout

    checkout, cache, index = find_checkout(), open_cache(cache_root), PackageIndex()
    inputs = lock_vendored(checkout.root, index) if renew else read_lock(LOCK)
    with progress(bytes_missing(inputs, cache), "fetching") as bar:
        fetch(inputs, cache, index, bar.update)
    made = make_zipapp(checkout.root, output or checkout.dist / "kvreg.pyz", cache)
    emit(
        made,
        as_json,
        lambda item: (
            f"{item.path}  {human_bytes(item.bytes)}  {item.sha256}\n"
            f"brings along: {', '.join(item.vendored)}"
        ),
    )
