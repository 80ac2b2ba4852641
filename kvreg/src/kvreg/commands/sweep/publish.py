"""``kvreg sweep publish``."""

import json
import shutil
import subprocess
from pathlib import Path

import click

from kvreg.commands.sweep.options import folder_argument
from kvreg.commands.sweep.pack import default_output, text, unfinished_option
from kvreg.console import emit, handled, json_option
from kvreg.errors import ContractError, KvregError, NotFoundError
from kvreg.sweep.evidence import pack

# The errors of another program of ours come back as what they are.
_KINDS = {kind.exit_code: kind for kind in KvregError.__subclasses__()}


@click.command("publish")
@folder_argument
@click.option(
    "--registry",
    "reference",
    required=True,
    metavar="REF",
    help="The repository or layout that has the runtime's artifact.",
)
@unfinished_option
@json_option
@handled
def command(folder: Path, reference: str, unfinished: bool, as_json: bool) -> None:
    """Pack a sweep and attach it to the exact runtime artifact that it ran.

    The artifact is the one of the sweep's identity, by digest. Attaching is the work of the program
    `registry` of the maintainers' package; without it, the packed file and the command that is to
    be run elsewhere are named.

    \b
    Examples:
      kvreg sweep publish sweep --registry oci-layout:dist/registry
      kvreg sweep publish sweep --registry ghcr.io/you/runtimes
    """
    packed = pack(folder, default_output(folder), unfinished=unfinished)
    if packed.artifact is None:
        raise ContractError(
            "the sweep ran no published runtime, so there is nothing to attach it to",
            found=f"packed as {packed.path}",
            remedy="run it with --profile",
        )
    target = f"{reference}@{packed.artifact}"
    words = ["registry", "attach", target, str(packed.path), "--type", "evidence"]
    program = shutil.which("registry")
    if program is None:
        raise NotFoundError(
            "there is no program `registry` here",
            found=f"packed as {packed.path}",
            remedy="where the maintainers' package is installed: " + " ".join(words),
        )
    result = subprocess.run(
        [program, *words[1:], "--json"], stdout=subprocess.PIPE, text=True, check=False
    )
    try:
        answer = json.loads(result.stdout)
    except ValueError:
        raise KvregError(
            "`registry attach` gave no answer", found=f"exit code {result.returncode}"
        ) from None
    if result.returncode != 0:
        error = answer["error"]
        raise _KINDS.get(result.returncode, KvregError)(
            error["what"],
            expected=error.get("expected"),
            found=error.get("found"),
            remedy=error.get("remedy"),
        )
    published = {**packed.to_dict(), "store": reference, "referrer": answer["digest"]}
    emit(
        published,
        as_json,
        lambda _: f"{text(packed)}\n  referrer  {answer['digest']} of {target}",
    )
