"""`builder build`"""

from __future__ import annotations

from pathlib import Path

import click

from builder.commands.options import cache_option, open_cache, profile_option
from kvreg.console import emit, handled, human_bytes, json_option, note


@click.command()
@profile_option
@click.option("--toolchain", help="Toolchain [default: the profile's first].")
@click.option(
    "--jobs", "-j", type=click.IntRange(1), help="Compiler processes at once [default: chosen]."
)
@click.option("--offline", is_flag=True, help="Fetch nothing; name what the input cache lacks.")
@click.option(
    "--compile-cache/--no-compile-cache",
    default=True,
    show_default=True,
    help="Keep objects between builds, by toolchain, in the input cache.",
)
@click.option(
    "--examine", is_flag=True, help="Compile nothing: audit and describe the finished build anew."
)
@click.option("--dry-run", is_flag=True, help="Show what would be built from what, and stop.")
@cache_option
@json_option
@handled
def build(
    profile_name: str,
    toolchain: str | None,
    jobs: int | None,
    offline: bool,
    compile_cache: bool,
    examine: bool,
    dry_run: bool,
    cache_root: Path | None,
    as_json: bool,
) -> None:
    """Build, audit and describe the wheel of a profile.

    Fetches what is missing, makes the toolchain image when there is none, compiles in a
    container without network, and audits the result. The wheel, its record, SBOM, audit and log
    land in dist/<profile>/. Nothing is published: that is `builder publish`.

    \b
    Examples:
      builder build --profile t4-probe --toolchain cuda-12.4-debian12
      builder build --profile t4x2-cu128 --toolchain cuda-12.4-debian12 --no-compile-cache
      builder build --profile t4x2-cu128-upstream --dry-run --json
    """
    from builder import product as products

    plan = products.plan_product(profile_name, toolchain, jobs, open_cache(cache_root))
    if dry_run:
        emit(plan.to_dict(), as_json, lambda d: plan.text())
        return
    note(plan.text())
    if examine:
        product = products.examine(plan.checkout, plan.profile, plan.folder, plan.cache, note)
    else:
        product = products.make_product(
            plan, offline=offline, use_compile_cache=compile_cache, say=note
        )
    emit(
        product.to_dict(),
        as_json,
        lambda d: (
            f"{d['wheel']}\n  {human_bytes(d['size'])}, sha256 {d['sha256']}\n"
            f"  record, SBOM, audit and log in {d['folder']}\n"
            f"next: builder publish --profile {d['profile']}"
        ),
    )
