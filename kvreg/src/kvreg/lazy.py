"""Command groups that import only the subcommand that is run."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

import click


@dataclass(frozen=True)
class Entry:
    """Where a subcommand is, and its one-line help: so that the group's help imports nothing.

    `help` is the first line of the command's own help; tests hold the two equal.
    """

    module: str
    help: str
    attribute: str = "command"

    def load(self) -> click.Command:
        """The command."""
        command: click.Command = getattr(importlib.import_module(self.module), self.attribute)
        return command


class LazyGroup(click.Group):
    """A group whose subcommands are imported when they are asked for.

    `table` has them by name, in the order of the help:
    ``@click.group(cls=LazyGroup, table={...})``.
    """

    def __init__(self, *args: object, table: Mapping[str, Entry], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See `click.Group`."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See `click.Group`."""
        return self.table[cmd_name].load() if cmd_name in self.table else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Group`."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.table.items()])
