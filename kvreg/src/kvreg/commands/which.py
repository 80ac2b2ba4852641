"""``kvreg which``."""

from pathlib import Path

import click

from kvreg.activation import find_runtime
from kvreg.commands.options import home_option, profile_argument
from kvreg.console import emit, handled, json_option
from kvreg.home import Home
from kvreg.whereabouts import Location, locate


@click.command("which")
@profile_argument
@click.argument("name")
@home_option
@json_option
@handled
def command(profile: str, name: str, home: Path | None, as_json: bool) -> None:
    """Say where a module, script or library is in a staged runtime, and how to use it.

    NAME is a script, a dotted module, the file name of a shared object, or a path in the runtime.
    Nothing is imported. A module of the host that is hidden while the runtime is in use is said.

    \b
    Examples:
      kvreg which t4x2-cu128 vllm
      kvreg which t4x2-cu128 vllm._C
      kvreg which t4x2-cu128 vllm.entrypoints.openai.api_server --json
    """
    runtime = find_runtime(Home.find(home), profile)
    found = locate(runtime, name, profile)
    emit([item.to_dict() for item in found] if as_json else found, as_json, _text)


def _text(found: tuple[Location, ...]) -> str:
    lines = []
    for item in found:
        lines += [f"{item.path}", f"  {item.kind:<7} of {item.wheel}", f"  use     {item.use}"]
        if item.hides is not None:
            lines.append(f"  hides   {item.hides}, which is the host's")
    return "\n".join(lines)
