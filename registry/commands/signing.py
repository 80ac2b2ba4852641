"""``registry keygen`` and ``registry sign``."""

import os
import sys
from pathlib import Path
from typing import get_args

import click

from kvreg.console import emit
from kvreg.errors import UsageError
from kvreg.reference import parse_reference
from kvreg.signatures import Form
from registry.commands.options import subcommand
from registry.store import open_store

PASSWORD_VARIABLE = "COSIGN_PASSWORD"

key_option = click.option(
    "--key",
    "key_path",
    required=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Private key: cosign's key file, or PEM. Its password: $COSIGN_PASSWORD, else asked for.",
)


@subcommand("keygen\nkeygen --output-prefix ci")
@click.option(
    "--output-prefix",
    "prefix",
    default="kvreg",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Writes PREFIX.key and PREFIX.pub.",
)
def keygen_command(prefix: Path, as_json: bool) -> None:
    """Make a key pair in cosign's own form (ECDSA P-256).

    The private key is encrypted with $COSIGN_PASSWORD or a password that is asked for, which may
    be empty. cosign can sign with it, and we can sign with a key of `cosign generate-key-pair`.
    """
    from registry.privatekey import generate_key, write_key_pair

    key = generate_key()
    private, public = write_key_pair(key, prefix, ask_password(confirm=True))
    emit(
        {"private": str(private), "public": str(public), "key": key.public.fingerprint},
        as_json,
        lambda r: f"{r['private']}  keep it to yourself\n{r['public']}  for all\n  key {r['key']}",
    )


@subcommand(
    "sign oci-layout:dist/registry:t4-probe --key kvreg.key\n"
    "sign ghcr.io/you/runtimes:t4x2-cu128 --key kvreg.key --form simple\n"
    "sign ghcr.io/you/runtimes:t4x2-cu128 --key kvreg.key --statement provenance.json"
)
@click.argument("reference", metavar="REF")
@key_option
@click.option(
    "--form",
    "forms",
    multiple=True,
    type=click.Choice(get_args(Form)),
    help="bundle: a referrer, for cosign 3. simple: the tag sha256-<hex>.sig, for cosign 1 and 2."
    "  [default: both]",
)
@click.option(
    "--statement",
    "statements",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Also sign this in-toto statement about REF (such as its provenance) and attach it.",
)
def sign_command(
    reference: str,
    key_path: Path,
    forms: tuple[Form, ...],
    statements: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Sign the artifact REF as cosign does, with a key pair and without a transparency log.

    What the key has signed already is left as it is. `cosign verify --key` and `kvreg pull
    --verify-key` accept the signature, wherever the artifact is copied.
    """
    from registry.privatekey import read_private_key
    from registry.signing import FORMS, attest, sign

    parsed = parse_reference(reference)
    if parsed.target is None:
        raise UsageError(
            "the reference names a store, not an artifact in it",
            expected=f"{reference}:TAG or {reference}@sha256:<hex>",
        )
    key = read_private_key(key_path, ask_password)
    with open_store(parsed) as store:
        done = sign(store, parsed.target, key, forms or FORMS)
        bundles = [
            attest(store, done.subject.digest, path.read_bytes(), key) for path in statements
        ]
        result = {
            "location": store.location,
            **done.to_dict(),
            "attestations": [item.digest for item in bundles],
        }
    emit(
        result,
        as_json,
        lambda r: "\n".join(
            [
                f"{r['location']}@{r['digest']}",
                f"  key     {r['key']}",
                *(
                    f"  {form:<7} {place}{'' if form in r['added'] else '  (was there)'}"
                    for form, place in r["signatures"].items()
                ),
                *(f"  attests {digest}" for digest in r["attestations"]),
            ]
        ),
    )


def ask_password(*, confirm: bool = False) -> bytes:
    """The password of a key: from the environment, else from the terminal, never from anywhere
    that a process list shows. `UsageError` when there is neither."""
    named = os.environ.get(PASSWORD_VARIABLE)
    if named is not None:
        return named.encode()
    if not sys.stdin.isatty():
        raise UsageError(
            "the private key needs a password",
            expected=f"${PASSWORD_VARIABLE} (it may be empty), or a terminal to ask on",
        )
    typed = click.prompt(
        "Password for the private key",
        default="",
        show_default=False,
        hide_input=True,
        confirmation_prompt=confirm,
        err=True,
    )
    return str(typed).encode()
