"""``kvreg verify``."""

import sys
from pathlib import Path

import click

from kvreg.activation import find_runtime
from kvreg.commands.options import home_option, profile_argument
from kvreg.console import emit, handled, human_bytes, json_option, progress
from kvreg.durability import unsettle
from kvreg.errors import VerificationError
from kvreg.home import Home
from kvreg.integrity import IntegrityReport, check_runtime

_SHOWN = 20


@click.command("verify")
@profile_argument
@home_option
@json_option
@handled
def command(profile: str, home: Path | None, as_json: bool) -> None:
    """Rehash everything that is staged for a profile and name what differs.

    Ends with 1 when a file was added, changed or removed since it was staged. The next pull makes
    the runtime anew then; until that, it is as it was found.

    \b
    Examples:
      kvreg verify t4x2-cu128
      kvreg verify sha256:<profile digest> --json
    """
    runtime = find_runtime(Home.find(home), profile)
    with progress(runtime.bytes, f"verify {runtime.profile_name}") as bar:
        report = check_runtime(runtime, progress=bar.update)
    emit(report, as_json, _text)
    if not report.ok:
        unsettle(runtime.folder)
        sys.exit(VerificationError.exit_code)


def _text(report: IntegrityReport) -> str:
    runtime = report.runtime
    head = (
        f"{'intact' if report.ok else 'NOT as it was staged'}: {runtime.profile_name}, "
        f"{report.files} files, {human_bytes(report.bytes)}, artifact {runtime.manifest_digest}"
    )
    lines = [head]
    for label in ("added", "changed", "missing"):
        paths = getattr(report, label)
        lines += [f"  {label:<8} {path}" for path in paths[:_SHOWN]]
        if len(paths) > _SHOWN:
            lines.append(f"  {label:<8} and {len(paths) - _SHOWN} more (all with --json)")
    if not report.ok:
        lines.append("  remedy:  remove added files; pull the profile again for the others")
    return "\n".join(lines)
