"""``kvreg resolve``."""

from pathlib import Path
from typing import Any

import click

from kvreg import api
from kvreg.commands.options import (
    home_option,
    lock_option,
    profile_argument,
    registry_option,
    timeout_option,
)
from kvreg.console import emit, handled, human_bytes, json_option
from kvreg.home import Home
from kvreg.lockfile import LOCK_FILE, Lockfile, read_lockfile
from kvreg.resolution import Resolution
from kvreg.runtime import readable_runtimes


@click.command("resolve")
@profile_argument
@registry_option
@click.option("--locked", is_flag=True, help="Refuse what is not in the lock file, as pull does.")
@lock_option
@home_option
@timeout_option
@json_option
@handled
def command(
    profile: str,
    registry: str | None,
    locked: bool,
    lock: Path | None,
    home: Path | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Say which artifact a profile means now, where it is, and what was tried.

    Nothing is fetched but manifests, and nothing is written. PROFILE is as for `kvreg pull`.

    \b
    Examples:
      kvreg resolve t4x2-cu128
      kvreg resolve t4x2-cu128 --locked --json
      kvreg resolve t4x2-cu128@sha256:<digest> --registry registry.example/team/runtimes
    """
    found = api.resolve(profile, registry=registry, locked=locked, lock=lock, timeout=timeout)
    result = {
        **found.to_dict(),
        "staged": is_staged(found, Home.find(home)),
        "lock": lock_state(found, read_lockfile(lock or Path(LOCK_FILE))),
    }
    emit(result, as_json, _text)


def is_staged(found: Resolution, home: Home) -> bool:
    """Whether exactly this artifact is staged."""
    return any(
        (runtime.profile_digest, runtime.manifest_digest)
        == (found.profile_digest, found.manifest_digest)
        for runtime in readable_runtimes(home)
    )


def lock_state(found: Resolution, lock: Lockfile) -> dict[str, str | None]:
    """What a lock says of the artifact: ``state`` is ``locked``, ``moved`` or ``absent``."""
    entry = lock.find(found.name, found.profile_digest)
    if entry is None:
        return {"state": "absent", "manifest": None}
    state = "locked" if entry.manifest == found.manifest_digest else "moved"
    return {"state": state, "manifest": entry.manifest}


def lock_text(state: dict[str, str | None]) -> str:
    """The same for people."""
    texts = {"locked": "locked to this artifact", "absent": "not locked"}
    return texts.get(str(state["state"]), f"locked to another artifact: {state['manifest']}")


def _text(result: dict[str, Any]) -> str:
    lines = [
        f"{result['name'] or 'a profile that is not known here'}",
        f"  profile   {result['profile']}",
        f"  artifact  {result['manifest']}",
        f"  source    {result['source']}",
        f"  named by  {result['origin']}",
    ]
    lines += [
        f"  tried     {item['source']} ({item['origin']}): {item['reason']}"
        for item in result["tried"]
        if item["outcome"] != "used"
    ]
    lines += [f"  blob      {digest}  {name}" for name, digest in result["blobs"].items()]
    lines += [
        f"  size      {human_bytes(result['size'])}",
        f"  staged    {'yes' if result['staged'] else 'no'}",
        f"  lock      {lock_text(result['lock'])}",
    ]
    return "\n".join(lines)
