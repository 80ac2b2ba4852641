"""``registry verify``."""

from pathlib import Path

import click

from kvreg.console import emit, human_bytes, progress
from kvreg.publickey import read_public_keys
from registry.commands.options import (
    no_referrers_option,
    reference_argument,
    subcommand,
    with_target,
)
from registry.describe import kind_of
from registry.store import open_store
from registry.verify import Verification, verify


@subcommand(
    "verify oci-layout:dist/t4-probe:t4-probe\nverify ghcr.io/you/runtimes:t4-probe --key kvreg.pub"
)
@reference_argument
@no_referrers_option
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


def _verified(found: Verification) -> str:
    rows = [
        f"{item.status:<8} {item.part:<9} {human_bytes(item.descriptor.size):>10}  "
        f"{item.descriptor.title or kind_of(item.descriptor)}  {item.reason}".rstrip()
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
