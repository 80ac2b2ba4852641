"""``kvreg pull``."""

from pathlib import Path

import click

from kvreg.acquisition import Acquired, LockPolicy, acquire
from kvreg.commands.options import (
    home_option,
    lock_option,
    profile_argument,
    registry_option,
    timeout_option,
)
from kvreg.console import emit, handled, human_bytes, json_option, note, progress
from kvreg.home import Home
from kvreg.model.oci import ANNOTATION_TOOLCHAIN_PREFIX
from kvreg.pull import Reporter
from kvreg.resolution import candidates, wanted_target
from kvreg.settings import required_keys
from kvreg.sources import open_source

UNCHECKED = "not checked: no key was given"


@click.command("pull")
@profile_argument
@registry_option
@click.option(
    "--locked",
    is_flag=True,
    help="Take exactly what the lock file says; refuse a tag that moved since.",
)
@lock_option
@click.option("--no-lock", is_flag=True, help="Neither read nor write a lock file.")
@click.option(
    "--verify-key",
    metavar="KEY",
    help="Refuse what this public key (a .pub file) has not signed."
    " Default: $KVREG_VERIFY_KEY, else verify-key of the settings file.",
)
@click.option(
    "--any-host",
    is_flag=True,
    help="Stage it even if this Python cannot load it: for another machine.",
)
@home_option
@timeout_option
@json_option
@handled
def command(
    profile: str,
    registry: str | None,
    locked: bool,
    lock: Path | None,
    no_lock: bool,
    verify_key: str | None,
    any_host: bool,
    home: Path | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Fetch, verify and stage the runtime of a profile.

    PROFILE is a name that this client knows, NAME@sha256:<hex> for exactly that profile or
    artifact, sha256:<hex> for a profile it need not know, or the path of a profile's folder.

    The artifact is found by the profile's digest; every byte of it is verified; the runtime
    appears in the home at once and complete, or not at all. The host's packages are not touched.
    A pull that was interrupted goes on from what had arrived. With a key, what is not signed, or
    signed by another, is refused before anything of it is fetched.

    What was pulled is written to the lock file; --locked pulls the same again, anywhere.

    \b
    Examples:
      kvreg pull t4x2-cu128
      kvreg pull t4x2-cu128 --locked
      kvreg pull t4x2-cu128 --registry oci-layout:./dist/registry
      kvreg pull t4x2-cu128 --registry registry.example/team/runtimes --verify-key team.pub
      kvreg pull t4x2-cu128@sha256:<digest> --registry 127.0.0.1:5000/team/runtimes --json
    """
    keys = required_keys(verify_key)
    found = acquire(
        profile,
        candidates(registry),
        lambda reference: open_source(reference, timeout=timeout),
        Home.find(home),
        policy=LockPolicy.chosen(lock, locked=locked, ignored=no_lock),
        target=wanted_target(registry),
        reporter=Reporter(note=note, bar=progress),
        keys=keys,
        any_host=any_host,
    )
    emit(found, as_json, lambda acquired: _text(acquired, profile))


def _text(acquired: Acquired, profile: str) -> str:
    runtime, resolution = acquired.runtime, acquired.resolution
    module = runtime.profile().runtime.modules[0]
    lines = [
        f"{'staged' if acquired.pulled.staged else 'already staged'}: {runtime.profile_name}",
        f"  profile   {runtime.profile_digest}",
        f"  artifact  {runtime.manifest_digest}",
        f"  from      {runtime.reference}",
    ]
    lines += [
        f"  not from  {attempt.source} ({attempt.origin}): {attempt.reason}"
        for attempt in resolution.tried
        if attempt.outcome != "used"
    ]
    signed = f"by the key {runtime.signature.key}" if runtime.signature else UNCHECKED
    lines.append(f"  signed    {signed}")
    for wheel in runtime.wheels:
        lines.append(f"  wheel     {wheel.filename} ({wheel.role})")
    for key, value in sorted(runtime.annotations.items()):
        if key.startswith(ANNOTATION_TOOLCHAIN_PREFIX):
            lines.append(f"  built     {key.removeprefix('vnd.kvreg.')}: {value}")
    lines += [
        f"  files     {runtime.files} ({human_bytes(runtime.bytes)})",
        f"  in        {runtime.folder}",
    ]
    if (work := acquired.pulled.work) is not None:
        lines.append(
            f"  received  {human_bytes(work.received)}; unpacked by {work.workers} threads with"
            f" {work.inflate} {work.inflate_version}"
            + (f"; {human_bytes(work.reused)} from earlier runtimes" if work.reused else "")
        )
    if (lock := acquired.lock) is not None:
        what = "written" if lock.written else "as it was"
        if lock.moved and lock.previous is not None:
            what += f"; it said {lock.previous.manifest}"
        lines.append(f"  lock      {lock.path} ({what})")
    lines.append(f"next: kvreg run {profile} -- python -c 'import {module}'")
    return "\n".join(lines)
