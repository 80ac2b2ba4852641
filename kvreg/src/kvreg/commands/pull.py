"""``kvreg pull``."""

from pathlib import Path

import click

from kvreg import catalogue
from kvreg.commands.options import home_option
from kvreg.console import emit, handled, human_bytes, json_option, note, progress
from kvreg.errors import NotFoundError, UsageError
from kvreg.home import Home
from kvreg.model.digest import is_digest
from kvreg.model.oci import ANNOTATION_TOOLCHAIN_PREFIX
from kvreg.pull import Pulled, Reporter, pull
from kvreg.reference import parse_reference
from kvreg.settings import required_keys
from kvreg.sources import open_source

UNCHECKED = "not checked: no key was given"


@click.command("pull")
@click.argument("profile")
@click.option(
    "--registry",
    metavar="REF",
    envvar="KVREG_REGISTRY",
    help="Where the artifact is: oci-layout:PATH or HOST[:PORT]/REPOSITORY, with :TAG or @DIGEST"
    " where the profile's own artifact is not meant. Default: $KVREG_REGISTRY.",
)
@click.option(
    "--verify-key",
    metavar="KEY",
    help="Refuse what this public key (a .pub file) has not signed."
    " Default: $KVREG_VERIFY_KEY, else verify-key of the settings file.",
)
@home_option
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=30.0,
    show_default=True,
    help="Seconds that a read from the network may bring nothing.",
)
@json_option
@handled
def command(
    profile: str,
    registry: str | None,
    verify_key: str | None,
    home: Path | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Fetch, verify and stage the runtime of a profile.

    The artifact is found by the profile's digest; every byte of it is verified; the runtime
    appears in the home at once and complete, or not at all. The host's packages are not touched.
    A pull that was interrupted goes on from what had arrived. With a key, what is not signed, or
    signed by another, is refused before anything of it is fetched.

    \b
    Examples:
      kvreg pull t4x2-cu128 --registry oci-layout:./dist/registry
      kvreg pull t4x2-cu128 --registry 127.0.0.1:5000/team/runtimes
      kvreg pull t4x2-cu128 --registry registry.example/team/runtimes --verify-key team.pub
      kvreg pull sha256:<profile digest> --registry registry.example/team/runtimes --json
    """
    if not registry:
        raise UsageError(
            "no registry was named",
            expected="--registry REF, or $KVREG_REGISTRY",
            remedy="for example: --registry oci-layout:./dist/registry",
        )
    reference = parse_reference(registry)
    name, digest = _identity(profile)
    keys = required_keys(verify_key)
    result = pull(
        digest,
        lambda: open_source(reference, timeout=timeout),
        reference.target,
        Home.find(home),
        Reporter(note=note, bar=progress),
        name,
        keys=keys,
    )
    emit(result, as_json, lambda pulled: _text(pulled, profile))


def _identity(profile: str) -> tuple[str | None, str]:
    """Name and digest of the profile; one that is given by digest need not be known here."""
    try:
        found = catalogue.find_profile(profile)
    except NotFoundError:
        if is_digest(profile):
            return None, profile
        raise
    return found.name, found.digest


def _text(pulled: Pulled, profile: str) -> str:
    runtime = pulled.runtime
    module = runtime.profile().runtime.modules[0]
    lines = [
        f"{'staged' if pulled.staged else 'already staged'}: {runtime.profile_name}",
        f"  profile   {runtime.profile_digest}",
        f"  artifact  {runtime.manifest_digest}",
        f"  from      {runtime.reference}",
        f"  signed    {f'by the key {runtime.signature.key}' if runtime.signature else UNCHECKED}",
    ]
    for wheel in runtime.wheels:
        lines.append(f"  wheel     {wheel.filename} ({wheel.role})")
    for key, value in sorted(runtime.annotations.items()):
        if key.startswith(ANNOTATION_TOOLCHAIN_PREFIX):
            lines.append(f"  built     {key.removeprefix('vnd.kvreg.')}: {value}")
    lines += [
        f"  files     {runtime.files} ({human_bytes(runtime.bytes)})",
        f"  in        {runtime.folder}",
        f"next: kvreg run {profile} -- python -c 'import {module}'",
    ]
    return "\n".join(lines)
