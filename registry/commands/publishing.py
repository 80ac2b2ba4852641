"""``registry push``."""

import datetime
from pathlib import Path

import click

from kvreg.console import emit, human_bytes, note, progress
from kvreg.model.oci import MEDIA_TYPE_WHEEL
from kvreg.model.profile import load_profile
from registry.commands.options import store_argument, subcommand
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


def _published(done: Published, location: str) -> str:
    return "\n".join(
        [
            f"{location}@{done.descriptor.digest}",
            f"  sent  {human_bytes(done.uploaded_bytes)}",
            *(f"  tag   {tag}" for tag in done.tags),
        ]
    )
