"""``registry tag`` and ``registry delete``."""

import click

from kvreg.console import emit
from registry.commands.options import reference_argument, subcommand, with_target
from registry.deletion import Deleted, delete
from registry.naming import name
from registry.store import open_store


@subcommand(
    "tag oci-layout:dist/registry:t4-probe tested\n"
    "tag 127.0.0.1:5000/runtimes@sha256:<hex> t4x2-cu128"
)
@reference_argument
@click.argument("tag", metavar="NEWTAG")
def tag_command(reference: str, tag: str, as_json: bool) -> None:
    """Let NEWTAG name what REF names, in the same store.

    A tag that names something else is moved, but never one with a date (NAME-vVERSION-YYYYMMDD):
    that fails with exit code 1.
    """
    parsed, target = with_target(reference)
    with open_store(parsed) as store:
        found = name(store, target, tag)
        data = {**found.to_dict(), "tag": tag}
        emit(data, as_json, lambda _: f"{store.location}:{tag}\n  {found.digest}")


@subcommand(
    "delete oci-layout:dist/registry:tested\ndelete --dry-run 127.0.0.1:5000/runtimes@sha256:<hex>"
)
@reference_argument
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
def delete_command(reference: str, dry_run: bool, as_json: bool) -> None:
    """Delete a tag, or the artifact of a digest with everything attached to it.

    With a tag, the tag alone goes. With a digest, the manifest and its attestations go; that is
    refused (exit code 1) while a tag still names one of them. Blobs are freed by `registry gc` in
    a layout, by the registry's own collection elsewhere.
    """
    parsed, target = with_target(reference)
    with open_store(parsed) as store:
        # REF may hold a tag and a digest; the digest is what counts everywhere.
        emit(delete(store, target, dry_run=dry_run), as_json, _deleted)


def _deleted(found: Deleted) -> str:
    verb = "deleted" if found.done else "would delete"
    if found.tag is not None:
        return f"{verb} the tag {found.location}:{found.tag}"
    return "\n".join(f"{verb} {found.location}@{digest}" for digest in found.manifests)
