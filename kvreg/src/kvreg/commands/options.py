"""Options that several commands share, and what they have in common."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvreg.errors import KvregError
from kvreg.lockfile import LOCK_FILE

if TYPE_CHECKING:
    from kvreg.facts import HostFacts


def known_profiles(ctx: click.Context, parameter: click.Parameter, start: str) -> list[str]:
    """Names of profiles that begin with `start`: what a shell offers for PROFILE."""
    from kvreg import catalogue  # only when a shell asks

    with contextlib.suppress(KvregError):
        return [name for name in catalogue.folders() if name.startswith(start)]
    return []


home_option = click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where runtimes are kept. Default: $KVREG_HOME, else ~/.local/share/kvreg.",
)
registry_option = click.option(
    "--registry",
    metavar="REF",
    help="Where the artifact is, and nowhere else: oci-layout:PATH or HOST[:PORT]/REPOSITORY, with"
    " :TAG or @DIGEST where the profile's own artifact is not meant. Default: $KVREG_REGISTRY, then"
    " registry of the settings file, then layouts under /kaggle/input ($KVREG_INPUTS).",
)
timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=30.0,
    show_default=True,
    help="Seconds that a read from the network may bring nothing.",
)
lock_option = click.option(
    "--lock",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help=f"The lock file. Default: {LOCK_FILE} in the current directory.",
)
profile_argument = click.argument("profile", shell_complete=known_profiles)

facts_option = click.option(
    "--facts",
    "facts_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Use the facts in this file (kvreg facts --output) instead of this host's.",
)


def host_facts(facts_file: Path | None, home: Path | None = None) -> "HostFacts":
    """The facts of `facts_option`, else those of ``kvreg --facts``, else this host's.

    Raises what `kvreg.facts.load` raises.
    """
    from kvreg.facts import current, load

    return load(facts_file) if facts_file else current(home)
