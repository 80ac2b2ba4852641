"""`builder fetch`"""

from __future__ import annotations

from pathlib import Path

import click

from builder.commands.options import cache_option, open_cache, profile_option
from kvreg.console import emit, handled, human_bytes, json_option, progress


@click.command()
@profile_option
@cache_option
@json_option
@handled
def fetch(profile_name: str, cache_root: Path | None, as_json: bool) -> None:
    """Download every locked input into the input cache.

    In parallel, verified by sha256, and gone on with where an earlier run was stopped. Inputs
    that are there already are not asked for again.

    \b
    Examples:
      builder fetch --profile t4x2-cu128
      builder fetch --profile t4-probe --cache /mnt/cache
    """
    from builder.layout import find_checkout
    from kvreg.model.profile import load_profile

    folder = find_checkout().profile(profile_name)
    profile = load_profile(folder)
    cache = open_cache(cache_root)
    done = fetch_profile(profile, folder, cache)
    emit(
        {"profile": profile.name, **done},
        as_json,
        lambda r: (
            f"{r['downloaded']} inputs downloaded ({human_bytes(r['transferred_bytes'])}), "
            f"{r['present']} were there"
        ),
    )


def fetch_profile(profile, folder, cache) -> dict[str, int]:
    """Fetch what a profile locks, with a bar; returns the counts."""
    from dataclasses import asdict

    from builder.build import locked_inputs
    from builder.fetch import bytes_missing, fetch
    from builder.index import PackageIndex

    inputs = [item for role in locked_inputs(profile, folder).values() for item in role]
    with progress(bytes_missing(inputs, cache), "fetching") as bar:
        return asdict(fetch(inputs, cache, PackageIndex(), bar.update))
