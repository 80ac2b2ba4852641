"""`builder overlay`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from builder.commands.options import profile_option
from kvreg.console import emit, handled, human_bytes, json_option, note


@click.group()
def overlay() -> None:
    """Lock and show the Python packages that stand beside the native wheel.

    \b
    Examples:
      builder overlay lock --profile t4x2-cu128 --host-freeze pip-freeze.txt
      builder overlay show --profile t4x2-cu128
    """


@overlay.command()
@profile_option
@click.option(
    "--host-freeze",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Output of pip freeze on the host; a copy without addresses is kept beside the profile"
    "  [default: that copy].",
)
@click.option(
    "--wheel",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The runtime's wheel, for its METADATA  [default: that of the finished build].",
)
@click.option(
    "--exclude-newer",
    metavar="YYYY-MM-DD",
    help="Resolve as of that day, 00:00 UTC; written into the profile  [default: the profile's].",
)
@json_option
@handled
def lock(
    profile_name: str,
    host_freeze: Path | None,
    wheel: Path | None,
    exclude_newer: str | None,
    as_json: bool,
) -> None:
    """Resolve what the runtime needs and the host lacks, and write overlay.lock.

    Requirements come from the wheel's own METADATA and the profile's extras. The host's versions
    are taken wherever they satisfy; protected packages (torch, numpy, triton, nvidia-*, ...) are
    never brought. Every entry says why it is there. The profile's digest changes with the lock;
    the native wheel stays as it is.

    \b
    Examples:
      builder overlay lock --profile t4x2-cu128 --host-freeze pip-freeze.txt
      builder overlay lock --profile t4x2-cu128 --exclude-newer 2026-05-23 --json
    """
    from builder.files import write_bytes
    from builder.freeze import FILE as FREEZE_FILE
    from builder.freeze import freeze_text, read_freeze
    from builder.index import PackageIndex
    from builder.layout import find_checkout
    from builder.overlay import Resolver
    from builder.overlay_lock import FILE, lock_text, wheel_metadata
    from kvreg.errors import UsageError
    from kvreg.model.profile import load_profile
    from kvreg.overlay import LOCK_KEY

    checkout = find_checkout()
    folder = checkout.profile(profile_name)
    if exclude_newer is not None:
        _set_exclude_newer(folder, exclude_newer)
    profile = load_profile(folder, allow_missing_locks=True)
    if LOCK_KEY not in profile.locks or profile.overlay is None:
        raise UsageError(
            f"profile {profile.name} has no overlay",
            remedy=f'give its profile.toml a table [overlay], and {LOCK_KEY} = "{FILE}" in [locks]',
        )
    host = read_freeze(host_freeze or folder / FREEZE_FILE)
    metadata = wheel_metadata(wheel, checkout.build_folder(profile.name), profile)
    date = profile.overlay.exclude_newer
    resolver = Resolver(profile, metadata, host, PackageIndex(), date)
    found = resolver.resolve(note)
    write_bytes(folder / FREEZE_FILE, freeze_text(host).encode())
    path = folder / profile.locks[LOCK_KEY].file
    write_bytes(path, lock_text(found, profile, host, date).encode())
    emit(
        {
            "profile": profile.name,
            "digest": load_profile(folder).digest,
            "written": path.name,
            "bytes": sum(entry.size for entry in found.entries),
            "kept": dict(found.kept),
            "entries": [_entry(entry) for entry in found.entries],
        },
        as_json,
        _text,
    )


@overlay.command()
@profile_option
@json_option
@handled
def show(profile_name: str, as_json: bool) -> None:
    """Show what a locked overlay holds, and how large it is.

    \b
    Examples:
      builder overlay show --profile t4x2-cu128
    """
    from builder.layout import find_checkout
    from builder.overlay_lock import overlay_inputs
    from kvreg.model.profile import load_profile

    folder = find_checkout().profile(profile_name)
    profile = load_profile(folder)
    inputs = overlay_inputs(profile, folder)
    emit(
        {
            "profile": profile.name,
            "bytes": sum(item.size for item in inputs),
            "wheels": [
                {"name": i.name, "version": i.version, "filename": i.filename, "size": i.size}
                for i in inputs
            ],
        },
        as_json,
        lambda r: "\n".join(
            [
                f"{r['profile']}: {len(r['wheels'])} wheels, {human_bytes(r['bytes'])}",
                *(
                    f"  {w['name']} {w['version']}  {human_bytes(w['size'])}"
                    for w in r["wheels"]
                ),
            ]
        ),
    )  # fmt: skip


def _entry(entry: Any) -> dict[str, Any]:
    return {
        "name": entry.name,
        "version": entry.version,
        "host_version": entry.host_version,
        "size": entry.size,
        "because": [str(need) for need in entry.because],
        "affects": [str(need) for need in entry.affects],
    }


def _text(result: dict[str, Any]) -> str:
    entries = result["entries"]
    shadows = [entry for entry in entries if entry["host_version"]]
    lines = [
        f"wrote {result['written']}: {len(entries)} wheels, {human_bytes(result['bytes'])};"
        f" {len(result['kept'])} packages of the host serve as they are",
        f"profile digest {result['digest']}",
        f"{len(shadows)} shadow the host's own:",
    ]
    for entry in shadows:
        lines.append(f"  {entry['name']} {entry['version']}, the host has {entry['host_version']}")
        lines += [f"    {need}" for need in entry["because"]]
        lines += [f"    seen by the host's: {need}" for need in entry["affects"]]
    absent = [f"{e['name']} {e['version']}" for e in entries if not e["host_version"]]
    lines.append(f"{len(absent)} are absent on the host: {', '.join(absent)}")
    return "\n".join(lines)


def _set_exclude_newer(folder: Path, date: str) -> None:
    """Record the day in the profile, where it belongs to the digest."""
    import re

    from builder.files import write_bytes
    from kvreg.errors import UsageError

    path = folder / "profile.toml"
    text = path.read_text("utf-8")
    changed, count = re.subn(r'(?m)^(exclude_newer\s*=\s*)"[^"\n]*"', rf'\g<1>"{date}"', text)
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", date) is None or count != 1:
        raise UsageError(
            "the day cannot be written into the profile",
            expected="yyyy-mm-dd, and one line exclude_newer in its [overlay]",
            found=date,
        )
    write_bytes(path, changed.encode())
