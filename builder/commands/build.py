"""`builder build`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.commands.options import cache_option, open_cache, profile_option
from kvreg.console import emit, handled, human_bytes, json_option, note

if TYPE_CHECKING:
    from builder.product import Plan, Product


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
    "--compile-cache-limit",
    metavar="SIZE",
    envvar="KVREG_COMPILE_CACHE_LIMIT",
    help="How large that may become, such as 5G [default: 5G].",
)
@click.option(
    "--from",
    "source",
    metavar="REF",
    help="A store to ask first: what was made of the same inputs, recipe and toolchain is taken.",
)
@click.option(
    "--verify-key",
    metavar="FILE",
    help="Take from --from only what one of these public keys has signed.",
)
@click.option("--again", is_flag=True, help="Build even if nothing changed since the last build.")
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
    compile_cache_limit: str | None,
    source: str | None,
    verify_key: str | None,
    again: bool,
    examine: bool,
    dry_run: bool,
    cache_root: Path | None,
    as_json: bool,
) -> None:
    """Build, audit and describe the wheel of a profile.

    Fetches what is missing, makes the toolchain image when there is none, compiles in a
    container without network, and audits the result. The wheel, its record, SBOM, audit and log
    land in dist/<profile>/. Nothing is published: that is `builder publish`. When a finished build
    here, or one in the store of --from, was made from the same inputs, recipe and toolchain, it is
    the answer and nothing is compiled. A build that was killed goes on from its last object file.

    \b
    Examples:
      builder build --profile t4-probe --toolchain cuda-12.4-debian12
      builder build --profile t4x2-cu128 --toolchain cuda-12.4-debian12 --no-compile-cache
      builder build --profile t4x2-cu128 --from localhost:5000/runtimes/vllm
      builder build --profile t4x2-cu128-upstream --dry-run --json
    """
    from builder import product as products
    from builder.compile_cache import DEFAULT_LIMIT, parse_size
    from kvreg.errors import UsageError

    plan = products.plan_product(profile_name, toolchain, jobs, open_cache(cache_root))
    if dry_run:
        emit(plan.to_dict(), as_json, lambda d: plan.text())
        return
    limit = compile_cache_limit or DEFAULT_LIMIT
    parse_size(limit)
    if verify_key and not source:
        raise UsageError("--verify-key is for what --from takes", expected="--from REF")
    note(plan.text())
    if examine:
        product = products.examine(plan.checkout, plan.profile, plan.folder, plan.cache, note)
    else:
        product = None if again else _made_before(plan, source, verify_key)
        product = product or products.make_product(
            plan,
            offline=offline,
            use_compile_cache=compile_cache,
            compile_cache_limit=limit,
            say=note,
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


def _made_before(plan: Plan, source: str | None, verify_key: str | None) -> Product | None:
    from contextlib import ExitStack

    from builder.answer import find_product
    from kvreg.settings import required_keys
    from registry.store import open_store

    keys = required_keys(verify_key) if verify_key else ()
    with ExitStack() as stack:
        store = stack.enter_context(open_store(source)) if source else None
        return find_product(plan, store, keys=keys, say=note)
