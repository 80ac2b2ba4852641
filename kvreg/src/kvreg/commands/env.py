"""``kvreg env``."""

import os
import shlex
from pathlib import Path
from typing import Any

import click

from kvreg.activation import check_environment, find_runtime, variables
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

    PYTHONPATH and PATH get the runtime first; KVREG_* say which one it is and where its compiled
    files go, so that it stays as verified; and the settings of the profile are set where you have
    not set them yourself. Settings that the profile denies are refused. Nothing else is changed;
    every Python that is started so sees the same packages: children, workers, scripts.

    \b
    Examples:
      eval "$(kvreg env t4x2-cu128)"
      kvreg env t4x2-cu128 --json
    """
    place = Home.find(home)
    runtime = find_runtime(place, profile)
    require_trusted(runtime, required_keys())
    settings = runtime.profile().runtime.environment
    check_environment(runtime.profile(), os.environ)
    values = variables(runtime, place, os.environ)
    result = {
        "variables": values,
        "set": {name: values[name] for name in settings.set if name in values},
        "kept": {name: os.environ[name] for name in settings.set if name not in values},
        "deny": settings.to_dict().get("deny", []),
    }
    emit(result, as_json, _exports)


def _exports(result: dict[str, Any]) -> str:
    lines = [f"export {key}={shlex.quote(value)}" for key, value in result["variables"].items()]
    lines += [
        f"# {key} stays {shlex.quote(value)}, which you set"
        for key, value in result["kept"].items()
    ]
    return "\n".join(lines)
