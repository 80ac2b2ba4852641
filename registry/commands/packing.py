"""``registry pack`` and ``registry unpack``."""

from pathlib import Path

import click

from kvreg.console import emit, human_bytes, note, progress
from kvreg.reference import LAYOUT_PREFIX
from registry.commands.options import reference_argument, store_only, subcommand, with_target
from registry.copy import Copied
from registry.pack import DEFAULT_LIMIT, Packed, check_packed, pack, unpack
from registry.store import open_store


@subcommand(
    "pack oci-layout:dist/registry:t4x2-cu128 upload/t4x2-cu128\n"
    "pack ghcr.io/you/runtimes:t4x2-cu128 upload/t4x2-cu128 --limit-gb 2"
)
@reference_argument
@click.argument("folder", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--limit-gb",
    type=click.FloatRange(min=0, min_open=True),
    default=DEFAULT_LIMIT / 1e9,
    show_default=True,
    help="Refuse an artifact with a file of more than so many gigabytes (10^9 bytes).",
)
def pack_command(reference: str, folder: Path, limit_gb: float, as_json: bool) -> None:
    """Write REF with its attestations to the new folder OUT, to be uploaded as a dataset.

    The folder is flat and every name survives an upload. `kvreg pull --registry oci-layout:FOLDER`
    reads it where it is attached, read-only and without network; `registry unpack` checks it
    against its packed.json. A pack that was killed goes on where it stopped.
    """
    parsed, target = with_target(reference)
    with open_store(parsed) as store, progress(None, "packing") as bar:
        done = pack(store, target, folder, limit=int(limit_gb * 1e9), progress=bar.update)
    emit(done, as_json, _packed)
    if not as_json:
        note(f"next: upload it, and there: kvreg pull PROFILE --registry {LAYOUT_PREFIX}FOLDER")


@subcommand(
    "unpack upload/t4x2-cu128\n"
    "unpack /kaggle/input/t4x2-cu128 oci-layout:runtimes\n"
    "unpack upload/t4x2-cu128 127.0.0.1:5000/runtimes"
)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("destination", metavar="[STORE]", required=False)
def unpack_command(folder: Path, destination: str | None, as_json: bool) -> None:
    """Check every file of a packed FOLDER, and copy its artifact with its tags into STORE.

    Without STORE the folder is checked and nothing is written. Every file that is missing or
    differs is named, with exit code 1.
    """
    if destination is None:
        with progress(None, "checking") as bar:
            packed = check_packed(folder, bar.update)
        emit(packed, as_json, lambda found: f"{_packed(found)}\nevery file is right")
        return
    with open_store(store_only(destination)) as store, progress(None, "unpacking") as bar:
        done = unpack(folder, store, bar.update)
    emit([item.to_dict() for item in done], as_json, lambda _: _unpacked(store.location, done))


def _packed(found: Packed) -> str:
    lines = [
        str(found.folder),
        f"  artifact  {found.digest}",
        f"  tags      {', '.join(found.tags) or 'none'}",
        f"  files     {len(found.files)}, {human_bytes(found.bytes)}",
    ]
    return "\n".join(lines)


def _unpacked(location: str, done: tuple[Copied, ...]) -> str:
    tags = dict.fromkeys(tag for item in done for tag in item.tags)
    return f"{location}@{done[0].descriptor.digest}\n  tags  {', '.join(tags) or 'none'}"
