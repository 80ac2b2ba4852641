"""``registry ls``, ``show``, ``resolve``, ``tags`` and ``referrers``: what is there."""

import click

from kvreg.console import emit, human_bytes
from kvreg.errors import NotFoundError
from kvreg.model.oci import Descriptor
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


@subcommand("resolve oci-layout:dist/t4-probe:t4-probe\nresolve 127.0.0.1:5000/runtimes:t4-probe")
@reference_argument
def resolve_command(reference: str, as_json: bool) -> None:
    """Print the digest that REF names, after checking the manifest's bytes."""
    parsed, target = with_target(reference)
    with open_store(parsed) as store:
        found = store.resolve(target)
        if found is None:
            raise NotFoundError(
                f"{store.location} has no {target}", remedy=f"see: registry ls {store.location}"
            )
        emit(found, as_json, lambda descriptor: descriptor.digest)


@subcommand("tags oci-layout:dist/t4-probe\ntags ghcr.io/you/runtimes")
@store_argument
def tags_command(store_reference: str, as_json: bool) -> None:
    """List the tags of a store, one a line."""
    with open_store(store_reference) as store:
        emit(list(store.list_tags()), as_json, "\n".join)


@subcommand(
    "referrers ghcr.io/you/runtimes:t4-probe\n"
    "referrers --artifact-type application/vnd.cyclonedx+json oci-layout:dist/t4-probe:t4-probe"
)
@reference_argument
@click.option("--artifact-type", metavar="TYPE", help="Only referrers of this type.")
def referrers_command(reference: str, artifact_type: str | None, as_json: bool) -> None:
    """List what is attached to an artifact: SBOM, provenance and others."""
    parsed, target = with_target(reference)
    with open_store(parsed) as store:
        found = store.resolve(target)
        if found is None:
            raise NotFoundError(f"{store.location} has no {target}")
        listed = store.referrers(found.digest, artifact_type)
        emit([item.to_dict() for item in listed], as_json, lambda _: _lines(listed))


def _lines(items: tuple[Descriptor, ...]) -> str:
    return "\n".join(
        f"{item.digest}  {item.artifact_type or item.media_type}  {human_bytes(item.size)}"
        for item in items
    )
