"""The command `registry`: artifacts in layouts and registries, from publishing to clearing away.

The commands that are about one purpose each are in `registry.commands`.
"""

import datetime
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kvreg.console import emit, human_bytes, note, progress
from kvreg.errors import NotFoundError, UsageError
from kvreg.model.oci import MEDIA_TYPE_WHEEL, Descriptor
from kvreg.model.profile import load_profile
from kvreg.publickey import read_public_keys
from kvreg.reference import RegistryReference, parse_reference
from registry import __version__
from registry.commands import contents, garbage, naming, packing, signing, simple
from registry.commands.options import (
    EXIT_CODES,
    reference_argument,
    store_argument,
    subcommand,
    with_target,
)
from registry.copy import Copied, copy
from registry.credentials import environment_is_ambiguous
from registry.publish import Layer, Published, publish
from registry.store import open_store
from registry.verify import Verification, verify

_REFERENCE_HELP = """\b
A reference is
  oci-layout:PATH[:TAG]                       an OCI image layout directory
  [http://|https://]HOST[:PORT]/REPO[:TAG]    a repository of a registry
and may end in @sha256:<hex> instead of a tag."""

_CREDENTIALS_HELP = """\b
Credentials come from KVREG_REGISTRY_USERNAME and KVREG_REGISTRY_PASSWORD (for
KVREG_REGISTRY_HOST alone, when that is set) or from what `docker login` stored."""


@click.group(
    epilog=f"""\b
Examples:
  registry ls oci-layout:dist/registry
  registry show oci-layout:dist/registry:t4-probe
  registry copy oci-layout:dist/t4-probe:t4-probe ghcr.io/you/runtimes
  registry verify ghcr.io/you/runtimes:t4-probe

{_REFERENCE_HELP}

{_CREDENTIALS_HELP}

{EXIT_CODES}"""
)
@click.version_option(__version__, prog_name="registry")
def main() -> None:
    """Work with runtime artifacts in OCI layouts and registries."""


for _item in (
    contents.ls_command,
    contents.show_command,
    naming.tag_command,
    naming.delete_command,
    garbage.gc_command,
    packing.pack_command,
    packing.unpack_command,
    simple.index_command,
    signing.keygen_command,
    signing.sign_command,
):
    main.add_command(_item)


def _command(examples: str) -> Callable[[Callable[..., Any]], click.Command]:
    """A command of this module, see `registry.commands.options.subcommand`."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        command = subcommand(examples)(function)
        main.add_command(command)
        return command

    return decorate


_no_referrers = click.option(
    "--no-referrers", is_flag=True, help="Leave the attestations out: the artifact alone."
)


@_command("resolve oci-layout:dist/t4-probe:t4-probe\nresolve 127.0.0.1:5000/runtimes:t4-probe")
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


@_command("tags oci-layout:dist/t4-probe\ntags ghcr.io/you/runtimes")
@store_argument
def tags_command(store_reference: str, as_json: bool) -> None:
    """List the tags of a store, one a line."""
    with open_store(store_reference) as store:
        emit(list(store.list_tags()), as_json, "\n".join)


@_command(
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


@_command(
    "copy oci-layout:dist/t4-probe:t4-probe ghcr.io/you/runtimes\n"
    "copy ghcr.io/you/runtimes:t4-probe oci-layout:mirror:t4-probe\n"
    "copy --no-referrers 127.0.0.1:5000/a:t4-probe 127.0.0.1:5000/b:tested"
)
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@_no_referrers
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


@_command(
    "verify oci-layout:dist/t4-probe:t4-probe\nverify ghcr.io/you/runtimes:t4-probe --key kvreg.pub"
)
@reference_argument
@_no_referrers
@click.option(
    "--key",
    "key_path",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Public key (.pub) that must have signed REF; checked before the bytes are.",
)
@click.pass_context
def verify_command(
    context: click.Context,
    reference: str,
    no_referrers: bool,
    key_path: Path | None,
    as_json: bool,
) -> None:
    """Read and hash every manifest and blob of REF again, those of its referrers included.

    With a key, REF must be signed by it.
    """
    parsed, target = with_target(reference)
    keys = read_public_keys(key_path) if key_path else ()
    with open_store(parsed) as store, progress(None, "verifying") as bar:
        found = verify(store, target, not no_referrers, bar.update, keys)
    emit(found, as_json, _verified)
    context.exit(0 if found.ok else 1)


@_command(
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


def _lines(items: tuple[Descriptor, ...]) -> str:
    return "\n".join(
        f"{item.digest}  {item.artifact_type or item.media_type}  {human_bytes(item.size)}"
        for item in items
    )


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


def _verified(found: Verification) -> str:
    rows = [
        f"{item.status:<8} {item.part:<9} {human_bytes(item.descriptor.size):>10}  "
        f"{item.descriptor.title or item.descriptor.media_type}  {item.reason}".rstrip()
        for item in found.judgements
    ]
    wrong = sum(item.status != "ok" for item in found.judgements)
    summary = (
        f"all {len(rows)} parts are right, {human_bytes(found.bytes_read)} hashed"
        if found.ok
        else f"{wrong} of {len(rows)} parts are wrong"
    )
    if found.signature is not None:
        signature = found.signature
        rows.append(f"signed by {signature.key} ({signature.form} in {signature.manifest})")
    return "\n".join([f"{found.location}@{found.descriptor.digest}", *rows, summary])
