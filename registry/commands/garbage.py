"""``registry gc``."""

import click

from kvreg.console import emit, human_bytes, note
from kvreg.errors import UsageError
from kvreg.model.oci import Descriptor
from registry.commands.options import store_argument, store_only, subcommand
from registry.garbage import DEFAULT_AGE, Garbage, collect_garbage, find_garbage
from registry.layout import Layout
from registry.remote import Remote
from registry.remote_garbage import Unreferenced, delete_unreferenced, find_unreferenced
from registry.store import open_store

_REGISTRY_NOTE = (
    "A registry frees bytes with its own collection, and does not tell of manifests that no tag"
    " and no list of referrers names. See docs/registries.md before you run it."
)


@subcommand(
    "gc oci-layout:dist/registry\n"
    "gc oci-layout:dist/registry --delete\n"
    "gc oci-layout:dist/registry --delete --older-than 0\n"
    "gc 127.0.0.1:5000/runtimes --delete"
)
@store_argument
@click.option("--delete", "do_delete", is_flag=True, help="Delete; without this nothing changes.")
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    metavar="HOURS",
    help="Layouts: leave what is younger alone, it may be the work of a writer."
    f"  [default: {DEFAULT_AGE / 3600:.0f}]",
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Registries: look again after this time and delete what was unreferenced both times."
    "  [default: 60]",
)
def gc_command(
    store_reference: str,
    do_delete: bool,
    older_than: float | None,
    wait: float | None,
    as_json: bool,
) -> None:
    """Find what no tag of STORE reaches any more, and delete it with --delete.

    Kept is what a tag names, everything below that, its attestations and theirs, and the subject
    of whatever is kept.

    In a layout that may run while others publish: it works under the layout's lock. Tools that know
    no such lock (skopeo, oras) should not write at the same time. In a registry nobody should: it
    has no locks.
    """
    with open_store(store_only(store_reference)) as store:
        if isinstance(store, Layout):
            if wait is not None:
                raise UsageError("--wait is for registries; layouts go by --older-than")
            age = DEFAULT_AGE if older_than is None else older_than * 3600
            work = collect_garbage if do_delete else find_garbage
            emit(work(store, age), as_json, _layout_text)
        elif isinstance(store, Remote):
            if older_than is not None:
                raise UsageError("--older-than is for layouts; a registry does not tell ages")
            if do_delete:
                found = delete_unreferenced(store, 60 if wait is None else wait)
            else:
                found = find_unreferenced(store)
            emit(found, as_json, _registry_text)
            if not as_json:
                note(_REGISTRY_NOTE)


def _layout_text(found: Garbage) -> str:
    lines = [f"manifest  {item.digest}  {_type(item)}" for item in found.manifests]
    verb = "freed" if found.deleted else "would free"
    lines.append(
        f"{len(found.manifests)} manifests and {len(found.blobs)} blobs:"
        f" {verb} {human_bytes(found.bytes)}"
    )
    if found.young:
        lines.append(f"{found.young} blobs that nothing names are young and stay for now")
    if found.blobs and not found.deleted:
        lines.append(f"to delete them: registry gc {found.location} --delete")
    return "\n".join(lines)


def _registry_text(found: Unreferenced) -> str:
    verb = "deleted" if found.deleted else "unreferenced"
    lines = [f"{verb}  {item.digest}  {_type(item)}" for item in found.manifests]
    lines += [f"{verb}  list {tag}" for tag in found.lists]
    lines += [f"{verb}  entry {digest} of the list of {where}" for where, digest in found.dangling]
    if found.empty:
        lines.append("nothing is unreferenced, as far as the registry tells")
    elif not found.deleted:
        lines.append(f"to delete them: registry gc {found.location} --delete")
    return "\n".join(lines)


def _type(item: Descriptor) -> str:
    return item.artifact_type or item.media_type
