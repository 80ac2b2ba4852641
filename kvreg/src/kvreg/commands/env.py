"""``kvreg env``."""

import os
import shlex
from pathlib import Path

import click

from kvreg.activation import find_runtime, variables
from kvreg.commands.options import home_option
from kvreg.console import emit, handled, json_option
from kvreg.home import Home
from kvreg.settings import require_trusted, required_keys


@click.command("env")
@click.argument("profile")
@home_option
@json_option
@handled
def command(profile: str, home: Path | None, as_json: bool) -> None:
    """Print what activates a staged runtime, as shell exports.

    Sets PYTHONPATH and PATH (the runtime first), PYTHONPYCACHEPREFIX (compiled files go into the
    home, so that the runtime stays as verified; left alone if you set it), and KVREG_PROFILE,
    KVREG_PROFILE_DIGEST, KVREG_MANIFEST_DIGEST and KVREG_RUNTIME. Nothing else.

    \b
    Examples:
      eval "$(kvreg env t4x2-cu128)"
      kvreg env t4x2-cu128 --json
    """
    place = Home.find(home)
    runtime = find_runtime(place, profile)
    require_trusted(runtime, required_keys())
    emit(variables(runtime, place, os.environ), as_json, _exports)


def _exports(values: dict[str, str]) -> str:
    return "\n".join(f"export {key}={shlex.quote(value)}" for key, value in values.items())
