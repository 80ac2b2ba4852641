"""``registry ls`` and ``registry show``: what is there."""

import click

from kvreg.console import emit
from registry.commands.options import (
    reference_argument,
    store_argument,
    store_only,
    subcommand,
    with_target,
)
from registry.describe import describe
from registry.inventory import inventory, listing
from registry.store import open_store


@subcommand("ls oci-layout:dist/registry\nls ghcr.io/you/runtimes --json")
@store_argument
def ls_command(store_reference: str, as_json: bool) -> None:
    """List the artifacts of STORE with their tags, sizes and attestations.

    A layout also lists what has no tag. A registry does not tell of that.
    """
    with open_store(store_only(store_reference)) as store:
        items = inventory(store)
        if as_json:
            emit([item.to_dict() for item in items], True, str)
        else:
            emit(items, False, listing)


@subcommand("show oci-layout:dist/registry:t4-probe\nshow --raw ghcr.io/you/runtimes:t4-probe")
@reference_argument
@click.option("--raw", is_flag=True, help="Print the manifest's exact bytes instead.")
def show_command(reference: str, raw: bool, as_json: bool) -> None:
    """Show an artifact: profile, files, sizes, host contract, annotations and attestations."""
    parsed, target = with_target(reference)
    with open_store(parsed) as store:
        page = describe(store, target)
        if raw:
            click.echo(store.fetch_manifest(page.content.descriptor.digest), nl=False)
        else:
            emit(page, as_json, lambda found: found.text())
