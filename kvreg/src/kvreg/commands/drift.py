"""``kvreg drift``."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvreg.commands.options import home_option, profile_argument
from kvreg.console import emit, handled, json_option
from kvreg.errors import ContractError, KvregError
from kvreg.home import Home

if TYPE_CHECKING:
    from kvreg.drift import Day, Drift


@click.command("drift")
@profile_argument
@click.argument(
    "folders", nargs=-1, required=True, metavar="HOSTDIR...", type=click.Path(path_type=Path)
)
@home_option
@json_option
@handled
def command(profile: str, folders: tuple[Path, ...], home: Path | None, as_json: bool) -> None:
    """Replay published package lists against a profile.

    A HOSTDIR holds the lists of one image: os-info.txt, pip-freeze.txt and perhaps apt-cuda.txt;
    its name ends in the date. Says from which date the profile breaks, on which fact, and what
    would be needed. What a list cannot tell (driver, GPUs) is not judged.

    \b
    Examples:
      kvreg drift t4x2-cu128 hosts/colab-gpu-*
      kvreg drift t4x2-cu128 hosts/colab-gpu-2026-08-14 --json

    \b
    Exit codes: 0 every image fits; 1 one violates the profile.
    """
    from kvreg import catalogue
    from kvreg.drift import drift
    from kvreg.runtime import read_runtime

    found = catalogue.find_profile(profile)
    wheel = None
    with contextlib.suppress(KvregError):
        runtime = read_runtime(Home.find(home).runtime(found.digest))
        wheel = next((item.filename for item in runtime.wheels if item.role != "overlay"), None)
    result = drift(found, folders, wheel)
    emit(result, as_json, _text)
    if result.first_break:
        sys.exit(ContractError.exit_code)


def _text(result: "Drift") -> str:
    lines = [line for day in result.days for line in _day(day)]
    first = result.first_break
    if first is None:
        lines.append(f"{result.profile} fits every image")
    else:
        facts = ", ".join(first.violated)
        lines.append(f"{result.profile} breaks from {first.date} on: {facts}")
    lines.append(f"not in package lists, so not judged: {', '.join(result.unlisted)}")
    return "\n".join(lines)


def _day(day: "Day") -> Iterator[str]:
    yield f"{day.date}  {day.status}"
    for check in day.checks:
        if check.status != "ok":
            yield f"  {check.name}: {check.status}: {check.reason}"
    for need in day.needs:
        yield f"  needed: {need}"
    if day.changed:
        yield f"  changed in the image: {', '.join(day.changed)}"
    yield ""
