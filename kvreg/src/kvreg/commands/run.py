"""``kvreg run``."""

import os
import shutil
import sys
from pathlib import Path

import click

from kvreg.activation import check_environment, find_runtime, variables
from kvreg.commands.options import home_option
from kvreg.console import handled
from kvreg.errors import NotFoundError
from kvreg.facts import require_own_host
from kvreg.home import Home
from kvreg.settings import require_trusted, required_keys


@click.command("run")
@click.argument("profile")
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD...")
@home_option
@handled
def command(profile: str, arguments: tuple[str, ...], home: Path | None) -> None:
    """Run a command with a staged runtime.

    The command takes the place of kvreg: signals and the exit code are its own. What is set in
    its environment is what `kvreg env` prints; settings that the profile denies are refused.

    \b
    Examples:
      kvreg run t4x2-cu128 -- python -c "import vllm; print(vllm.__version__)"
      kvreg run t4x2-cu128 -- vllm serve Qwen/Qwen2.5-3B-Instruct --tensor-parallel-size 2
      kvreg run --home ./home t4-probe -- python -m kvreg_probe --json
    """
    require_own_host("running a command")
    place = Home.find(home)
    runtime = find_runtime(place, profile)
    require_trusted(runtime, required_keys())
    check_environment(runtime.profile(), os.environ)
    environment = {**os.environ, **variables(runtime, place, os.environ)}
    program = shutil.which(arguments[0], path=environment["PATH"])
    if program is None:
        raise NotFoundError(
            f"there is no command {arguments[0]!r}",
            expected="a program on PATH or in the runtime's bin directory",
        )
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(program, list(arguments), environment)
