"""What the commands share: how one is made, and how references are read."""

from collections.abc import Callable
from typing import Any

import click

from kvreg.console import handled, json_option
from kvreg.errors import UsageError
from kvreg.reference import Reference, parse_reference

EXIT_CODES = """\b
Exit codes: 0 fine, 1 verification failed or a rule forbids it, 2 usage,
3 not found, 4 network or registry, 5 storage."""

reference_argument = click.argument("reference", metavar="REF")
no_referrers_option = click.option(
    "--no-referrers", is_flag=True, help="Leave the attestations out: the artifact alone."
)
store_argument = click.argument("store_reference", metavar="STORE")


def subcommand(examples: str) -> Callable[[Callable[..., Any]], click.Command]:
    """A command with ``--json``, reported errors, and examples at the end of its help.

    It is called as its function is, without ``_command``. `examples` are lines without the
    program's name.
    """
    lines = "\n".join(f"  registry {line}" for line in examples.splitlines())
    title = "Examples" if "\n" in examples else "Example"

    def decorate(function: Callable[..., Any]) -> click.Command:
        name = function.__name__.removesuffix("_command").replace("_", "-")
        command = json_option(handled(function))
        return click.command(name, epilog=f"\b\n{title}:\n{lines}\n\n{EXIT_CODES}")(command)

    return decorate


def with_target(text: str) -> tuple[Reference, str]:
    """A reference that names an artifact, and its tag or digest."""
    parsed = parse_reference(text)
    if parsed.target is None:
        raise UsageError(
            "the reference names a store, not an artifact in it",
            expected=f"{text}:TAG or {text}@sha256:<hex>",
            remedy=f"see what there is: registry ls {text}",
        )
    return parsed, parsed.target


def store_only(text: str) -> Reference:
    """A reference that names a store."""
    parsed = parse_reference(text)
    if parsed.target is not None:
        raise UsageError(
            "the reference names an artifact; the command works on a whole store",
            expected=str(parsed.with_target()),
            found=text,
        )
    return parsed
