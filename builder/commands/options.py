"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

from builder.cache import InputCache

profile_option = click.option(
    "--profile", "-p", "profile_name", required=True, help="Profile name, or a folder with one."
)
cache_option = click.option(
    "--cache",
    "cache_root",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="KVREG_BUILD_CACHE",
    help="Input cache [default: kvreg-builder in the user's cache folder].",
)


def open_cache(root: Path | None) -> InputCache:
    """The input cache that `--cache` names."""
    return InputCache(root)
