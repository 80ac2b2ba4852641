"""``kvreg env``."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvreg.activation import check_environment, find_runtime, variables
from kvreg.commands.options import home_option
from kvreg.console import emit, handled, json_option
from kvreg.home import Home
from kvreg.settings import require_trusted, required_keys

if TYPE_CHECKING:
    from kvreg.affected import Affected


@click.command("env")
@click.argument("profile")
@click.option(
    "--affected",
    is_flag=True,
    help="Instead: the host's packages that would see the runtime's version of something.",
)
@home_option
@json_option
@handled
def command(profile: str, affected: bool, home: Path | None, as_json: bool) -> None:
    """Print what activates a staged runtime, as shell exports.

    PYTHONPATH and PATH get the runtime first; KVREG_* say which one it is and where its compiled
    files go, so that it stays as verified; and the settings of the profile are set where you have
    not set them yourself. Settings that the profile denies are refused. Nothing else is changed;
    every Python that is started so sees the same packages: children, workers, scripts.

    \b
    Examples:
      eval "$(kvreg env t4x2-cu128)"
      kvreg env t4x2-cu128 --json
      kvreg env t4x2-cu128 --affected
    """
    place = Home.find(home)
    runtime = find_runtime(place, profile)
    require_trusted(runtime, required_keys())
    if affected:
        from kvreg.affected import affected as affected_packages

        rows = affected_packages(runtime)
        emit([row.to_dict() for row in rows], as_json, lambda _: _affected(rows))
        return
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


def _affected(rows: tuple["Affected", ...]) -> str:
    return "\n".join(map(str, rows)) or "no package of the host depends on what is shadowed"


def _exports(result: dict[str, Any]) -> str:
    lines = [f"export {key}={shlex.quote(value)}" for key, value in result["variables"].items()]
    lines += [
        f"# {key} stays {shlex.quote(value)}, which you set"
        for key, value in result["kept"].items()
    ]
    return "\n".join(lines)
