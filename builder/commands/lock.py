"""`builder lock`"""

from __future__ import annotations

import click

from builder.commands.options import profile_option
from kvreg.console import emit, handled, json_option, note


@click.command()
@profile_option
@json_option
@handled
def lock(profile_name: str, as_json: bool) -> None:
    """Resolve every input of a profile and write its lock files.

    Names, versions and sha256 come from the package index that pip is configured with; no host
    is written. Review the difference before committing it: the profile's digest changes with it.

    \b
    Examples:
      builder lock --profile t4x2-cu128
      builder lock --profile profiles/t4-probe --json
    """
    from builder.index import PackageIndex
    from builder.layout import find_checkout
    from builder.lock import lock_profile
    from kvreg.model.profile import load_profile

    folder = find_checkout().profile(profile_name)
    profile = load_profile(folder, allow_missing_locks=True)
    written = lock_profile(profile, folder, PackageIndex(), note)
    digest = load_profile(folder).digest
    result = {"profile": profile.name, "digest": digest, "written": [p.name for p in written]}
    emit(
        result,
        as_json,
        lambda r: f"wrote {', '.join(r['written']) or 'nothing'}; profile digest {r['digest']}",
    )
