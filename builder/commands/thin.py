"""`builder thin`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from builder.commands.options import profile_option
from kvreg.console import emit, handled, human_bytes, json_option, progress

_wheel = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("wheel", type=_wheel)
@profile_option
@click.option(
    "--arch",
    "architectures",
    multiple=True,
    metavar="X.Y",
    help="Compute capability to keep code for [default: the profile's, which it must be].",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the thin wheel [default: dist/<profile>/thin].",
)
@json_option
@handled
def thin(
    wheel: Path,
    profile_name: str,
    architectures: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> None:
    """Make a wheel of upstream's WHEEL with device code for the profile's GPUs alone.

    Of every module, the code that other GPUs would use is taken out and the file made smaller;
    addresses and all other sections stay as they are, which is checked byte by byte. Where a GPU
    would compile PTX, because upstream has no machine code for it, PTX stays if the profile sets
    build.ptx. A module that would lose all code that its GPUs use is refused, unless the profile's
    omissions say why it may. The version gets the profile's local part.

    What is written is neither audited nor published: builder build does all of it for a profile
    with the recipe thin.

    \b
    Examples:
      builder thin vllm-0.18.1-cp38-abi3-*.whl --arch 7.5 --profile t4x2-cu128-thin
      builder thin vllm-0.18.1-cp38-abi3-*.whl -p t4x2-cu128-thin --out /tmp/thin --json
    """
    from builder.layout import find_checkout
    from builder.thin import thin_wheel, unpacked_size
    from builder.thin_plan import Wanted
    from kvreg.model.profile import load_profile

    checkout = find_checkout()
    profile = load_profile(checkout.profile(profile_name), allow_missing_locks=True)
    wanted = Wanted.of(profile, architectures)
    with progress(unpacked_size(wheel), "thinning") as bar:
        made = thin_wheel(
            wheel,
            profile,
            wanted,
            out or checkout.build_folder(profile.name) / "thin",
            progress=bar.update,
        )
    size = made.wheel.stat().st_size
    emit({"wheel": str(made.wheel), "size": size, **made.facts}, as_json, _text)


def _text(result: dict[str, Any]) -> str:
    upstream = result["upstream"]
    lines = [
        result["wheel"],
        f"  {human_bytes(result['size'])} of {human_bytes(upstream['size'])},"
        f" for {', '.join(result['architectures'])}",
    ]
    for module in result["modules"]:
        sizes = f"{human_bytes(module['before']['size'])} -> {human_bytes(module['after']['size'])}"
        lines.append(f"  {module['path']}  {sizes}")
        lines.append(f"    kept     {_counts(module['kept'])}")
        lines.append(f"    removed  {_counts(module['removed'])}")
        if module["units_left_without"]:
            lines.append(f"    {module['units_left_without']} units left without code")
        if "emptied" in module:
            lines.append(f"    emptied: {module['emptied']}")
    lines += [f"  {item['path']}  left out: {item['reason']}" for item in result["dropped"]]
    return "\n".join(lines)


def _counts(entries: dict[str, dict[str, int]]) -> str:
    found = [f"{item['count']} {name}" for name, item in entries.items()]
    return ", ".join(found) or "nothing"
