"""``kvreg completion``."""

import os
from pathlib import PurePath

import click

from kvreg.console import handled
from kvreg.errors import UsageError

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", required=False, type=click.Choice(_SHELLS))
@handled
def command(shell: str | None) -> None:
    """Print what makes a shell complete kvreg's commands, options and profiles.

    Without SHELL it is for the one that $SHELL names.

    \b
    Examples:
      eval "$(kvreg completion bash)"        # in ~/.bashrc
      eval "$(kvreg completion zsh)"         # in ~/.zshrc
      kvreg completion fish > ~/.config/fish/completions/kvreg.fish
    """
    from click.shell_completion import get_completion_class

    from kvreg.cli import main

    name = shell or PurePath(os.environ.get("SHELL", "")).name
    kind = get_completion_class(name)
    if kind is None:
        raise UsageError(
            "this shell is not one that can be served",
            expected="one of " + ", ".join(_SHELLS),
            found=repr(name),
            remedy="name one: kvreg completion bash",
        )
    click.echo(kind(main, {}, "kvreg", "_KVREG_COMPLETE").source())
