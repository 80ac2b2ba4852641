"""``registry push`` and ``registry copy``."""

import datetime
import os
from pathlib import Path

import click

from kvreg.console import emit, human_bytes, note, progress
from kvreg.errors import UsageError
from kvreg.model.oci import MEDIA_TYPE_WHEEL
from kvreg.model.profile import load_profile
from kvreg.reference import RegistryReference, parse_reference
from registry.commands.options import (
    no_referrers_option,
    store_argument,
    subcommand,
    with_target,
)
from registry.copy import Copied, copy
from registry.credentials import environment_is_ambiguous
from registry.publish import Layer, Published, publish
from registry.store import open_store


@subcommand(
    "push oci-layout:dist/demo --profile profiles/t4-probe --wheel probe.whl --role probe\n"
    "push 127.0.0.1:5000/runtimes --profile profiles/t4x2-cu128 --wheel vllm.whl"
)
@store_argument
@click.option(
    "--profile",
    "folder",
    required=True,
    metavar="DIR",
    help="The profile's folder.",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option(
    "--wheel",
    "wheels",
    required=True,
    multiple=True,
    metavar="FILE",
    help="Repeatable.",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--role",
    type=click.Choice(["native", "probe", "overlay"]),
    help="The wheels' role; default: the profile's.",
)
@click.option(
    "--date",
    metavar="YYYY-MM-DD",
    type=click.DateTime(["%Y-%m-%d"]),
    help="For the tag that is never moved; default: today.",
)
def push_command(
    store_reference: str,
    folder: Path,
    wheels: tuple[Path, ...],
    role: str | None,
    date: datetime.datetime | None,
    as_json: bool,
) -> None:
    """Publish wheels as the runtime of a profile. `builder publish` does that and more."""
    profile = load_profile(folder)
    layers = [Layer(path, MEDIA_TYPE_WHEEL, role or profile.runtime.role) for path in wheels]
    total = sum(path.stat().st_size for path in wheels)
    with open_store(store_reference) as store:
        with progress(total, "pushing") as bar:
            day = date.date() if date else None
            done = publish(store, profile, layers, date=day, progress=bar.update)
        emit(done, as_json, lambda found: _published(found, store.location))
        if not as_json:
            note(f"next: registry verify {store.location}:{done.tags[0]}")


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


def _published(done: Published, location: str) -> str:
    return "\n".join(
        [
            f"{location}@{done.descriptor.digest}",
            f"  sent  {human_bytes(done.uploaded_bytes)}",
            *(f"  tag   {tag}" for tag in done.tags),
        ]
    )
