"""`builder audit`"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from builder.cache import InputCache
from builder.commands.options import cache_option, open_cache, profile_option
from kvreg.console import emit, handled, json_option, note, progress
from kvreg.model.profile import Profile

_wheel = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("wheel", type=_wheel)
@profile_option
@click.option(
    "--torch-wheel",
    type=_wheel,
    help="The torch wheel compiled against [default: the locked one, when it was fetched].",
)
@click.option(
    "--library-wheel",
    "library_wheels",
    type=_wheel,
    multiple=True,
    help="A wheel of libraries (nvidia-cublas-cu12) whose symbols shall be looked up as well.",
)
@cache_option
@json_option
@handled
def audit(
    wheel: Path,
    profile_name: str,
    torch_wheel: Path | None,
    library_wheels: tuple[Path, ...],
    cache_root: Path | None,
    as_json: bool,
) -> None:
    """Check that WHEEL is what its profile says, before it is published.

    Metadata, tags and RECORD; device code for the profile's GPUs; symbol versions, libraries and
    symbols that the host, torch and the driver must have; CPython's stable interface; build paths
    and secrets. A failing check says what, where and the remedy, and the exit code is 1.

    \b
    Examples:
      builder audit dist/t4x2-cu128/vllm-*.whl --profile t4x2-cu128
      builder audit vllm-*.whl -p t4x2-cu128-upstream --torch-wheel torch-2.10.0-*.whl
      builder audit vllm-*.whl -p t4x2-cu128 --json | jq '.checks[] | select(.status != "pass")'
    """
    from builder.audit import audit_wheel
    from builder.layout import find_checkout
    from kvreg.model.profile import load_profile

    folder = find_checkout().profile(profile_name)
    profile = load_profile(folder, allow_missing_locks=True)
    cache = open_cache(cache_root)
    torch_filename = None
    if torch_wheel is None:
        torch_wheel, torch_filename = _locked_torch(profile, folder, cache)
    with progress(None, "auditing") as bar:
        report = audit_wheel(
            wheel,
            profile,
            torch_wheel,
            library_wheels=library_wheels,
            torch_filename=torch_filename,
            cache=cache,
            progress=bar.update,
        )
    emit(report, as_json, lambda value: value.text())
    if not report.complete:
        note("some checks were skipped: this is no full audit")
    if not report.ok:
        sys.exit(1)


def _locked_torch(
    profile: Profile, folder: Path, cache: InputCache
) -> tuple[Path | None, str | None]:
    """The torch wheel that the profile locks, where the cache has it, and its file name."""
    from builder.inputs import read_lock

    for lock in profile.locks.values():
        if lock.sha256 is None:
            continue
        for item in read_lock(folder / lock.file):
            if (item.name, item.kind) == ("torch", "wheel") and cache.has(item.sha256):
                return cache.path(item.sha256), item.filename
    return None, None
