"""``registry copy``."""

import os

import click

from kvreg.console import emit, human_bytes, progress
from kvreg.errors import UsageError
from kvreg.reference import RegistryReference, parse_reference
from registry.commands.options import no_referrers_option, subcommand, with_target
from registry.copy import Copied, copy
from registry.credentials import environment_is_ambiguous
from registry.store import open_store


@subcommand(
    "copy oci-layout:dist/t4-probe:t4-probe ghcr.io/you/runtimes\n"
    "copy ghcr.io/you/runtimes:t4-probe oci-layout:mirror:t4-probe\n"
    "copy --no-referrers 127.0.0.1:5000/a:t4-probe 127.0.0.1:5000/b:tested"
)
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@no_referrers_option
def copy_command(source: str, destination: str, no_referrers: bool, as_json: bool) -> None:
    """Copy the artifact SRC with its referrers to DST.

    DST is a store, or a reference with the tag that the copy is to have. Digests stay the same;
    blobs that are there already are not sent again.
    """
    parsed, target = with_target(source)
    goal = parse_reference(destination)
    if goal.digest is not None:
        raise UsageError("the destination of a copy has a tag or nothing, not a digest")
    hosts = {item.host for item in (parsed, goal) if isinstance(item, RegistryReference)}
    if environment_is_ambiguous(hosts, os.environ):
        raise UsageError(
            "KVREG_REGISTRY_PASSWORD is set and the copy involves two registries",
            expected="KVREG_REGISTRY_HOST with the one that it belongs to",
            found=", ".join(sorted(hosts)),
        )
    with open_store(parsed) as start, open_store(goal) as end:
        with progress(None, "copying") as bar:
            done = copy(start, end, target, not no_referrers, tag=goal.tag, progress=bar.update)
        emit(done, as_json, lambda found: _copied(found, end.location))


def _copied(done: Copied, location: str) -> str:
    return (
        f"{location}@{done.descriptor.digest}\n"
        f"  tags       {', '.join(done.tags) or 'none'}\n"
        f"  manifests  {done.manifests}, {done.referrers} of them referrers\n"
        f"  blobs      {done.blobs_copied} copied ({human_bytes(done.blob_bytes)}),"
        f" {done.blobs_present} were there"
    )
