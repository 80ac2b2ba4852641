"""`builder cache`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.commands.options import cache_option, open_cache
from kvreg.console import emit, handled, human_bytes, json_option, progress

if TYPE_CHECKING:
    from builder.cache import InputCache
    from builder.compile_cache import CompileCache

toolchain_option = click.option(
    "--toolchain", required=True, help="Toolchain; its image says which compilers."
)
store_argument = click.argument("store", metavar="REF")


@click.group()
def cache() -> None:
    """Keep the compile cache: save it to a registry, restore it, show it, make it smaller.

    It lies in the input cache, one folder for each toolchain and its compilers, and is filled by
    `builder build`. A wheel that is built from it is the same to the byte.

    \b
    Examples:
      builder cache show
      builder cache push localhost:5000/runtimes/vllm --toolchain cuda-12.4-debian12
      builder cache pull localhost:5000/runtimes/vllm --toolchain cuda-12.4-debian12
      builder cache prune --limit 2G --older-than 30
    """


@cache.command()
@store_argument
@toolchain_option
@cache_option
@json_option
@handled
def push(store: str, toolchain: str, cache_root: Path | None, as_json: bool) -> None:
    """Save a toolchain's compile cache to a store, as an artifact of its own.

    What the store has already is not sent again. The tag names toolchain and compilers, and moves.

    \b
    Examples:
      builder cache push oci-layout:dist/registry --toolchain cuda-12.4-debian12
    """
    from builder import compile_cache_artifact
    from registry.store import open_store

    found = _of_toolchain(open_cache(cache_root), toolchain)
    with open_store(store) as opened, progress(None, "saving") as bar:
        moved = compile_cache_artifact.push(found, opened, bar.update)
    emit(
        {"store": store, **moved.to_dict()},
        as_json,
        lambda r: (
            f"{r['digest']} in {r['store']}\n  tag {r['tag']}, {r['entries']} entries, "
            f"{human_bytes(r['moved_bytes'])} sent"
        ),
    )


@cache.command()
@store_argument
@toolchain_option
@click.option("--tag", help="Tag or digest to restore [default: the one of the toolchain].")
@click.option(
    "--missing-ok", is_flag=True, help="Succeed when the store has none for these compilers."
)
@click.option(
    "--verify-key", metavar="FILE", help="Refuse what none of these public keys has signed."
)
@cache_option
@json_option
@handled
def pull(
    store: str,
    toolchain: str,
    tag: str | None,
    missing_ok: bool,
    verify_key: str | None,
    cache_root: Path | None,
    as_json: bool,
) -> None:
    """Restore a toolchain's compile cache from a store.

    Every entry is hashed before it takes its place. A cache that other compilers filled, under
    whatever name, is refused with both digests.

    \b
    Examples:
      builder cache pull oci-layout:dist/registry --toolchain cuda-12.4-debian12 --missing-ok
    """
    from builder import compile_cache_artifact
    from kvreg.errors import NotFoundError
    from kvreg.settings import required_keys
    from registry.store import open_store

    found = _of_toolchain(open_cache(cache_root), toolchain)
    keys = required_keys(verify_key) if verify_key else ()
    result: dict[str, Any]
    try:
        with open_store(store) as opened, progress(None, "restoring") as bar:
            moved = compile_cache_artifact.pull(found, opened, tag, keys=keys, progress=bar.update)
            result = moved.to_dict()
    except NotFoundError as error:
        if not missing_ok or tag is not None:
            raise
        result = {"digest": None, "why": error.what}
    emit(
        {"store": store, **result},
        as_json,
        lambda r: (
            f"{r['moved_entries']} of {r['entries']} entries restored, "
            f"{human_bytes(r['moved_bytes'])}; the others were here"
            if r["digest"]
            else r["why"]
        ),
    )


@cache.command()
@cache_option
@json_option
@handled
def show(cache_root: Path | None, as_json: bool) -> None:
    """Show what compile caches there are, how large, and for which compilers.

    \b
    Examples:
      builder cache show --json
    """
    from builder.compile_cache import known_caches

    emit(
        {"caches": [item.describe() for item in known_caches(open_cache(cache_root))]},
        as_json,
        lambda r: (
            "\n".join(
                f"{c['name']}: {c['objects']} objects, {human_bytes(c['bytes'])}"
                for c in r["caches"]
            )
            or "no compile cache yet: builder build fills one"
        ),
    )


@cache.command()
@click.option("--limit", metavar="SIZE", help="What may stay of each, such as 2G.")
@click.option("--older-than", type=float, metavar="DAYS", help="Remove what did not serve since.")
@click.option("--damaged", is_flag=True, help="Remove what is not as it was sealed.")
@cache_option
@json_option
@handled
def prune(
    limit: str | None,
    older_than: float | None,
    damaged: bool,
    cache_root: Path | None,
    as_json: bool,
) -> None:
    """Remove entries of every compile cache, the longest unused first.

    \b
    Examples:
      builder cache prune --limit 2G
      builder cache prune --damaged
    """
    from builder.compile_cache import known_caches, parse_size
    from kvreg.errors import UsageError

    if limit is None and older_than is None and not damaged:
        raise UsageError("say what to remove", expected="--limit, --older-than or --damaged")
    size = parse_size(limit) if limit is not None else None
    pruned = []
    for item in known_caches(open_cache(cache_root)):
        count, removed = item.prune(limit=size, older_than_days=older_than, damaged=damaged)
        pruned.append({"name": item.name, "entries": count, "bytes": removed})
    emit(
        {"pruned": pruned},
        as_json,
        lambda r: "\n".join(
            f"{p['name']}: {p['entries']} entries removed, {human_bytes(p['bytes'])}"
            for p in r["pruned"]
        ),
    )


def _of_toolchain(cache: InputCache, name: str) -> CompileCache:
    """The compile cache of the toolchain's image. Raises NotFoundError when there is no image."""
    from builder.compile_cache import cache_of
    from builder.engine import connect
    from builder.layout import find_checkout
    from builder.toolchain import find_built, load_toolchain
    from kvreg.errors import NotFoundError

    with connect() as engine:
        image = find_built(engine, load_toolchain(name, find_checkout().dockerfiles), cache)
    if image is None:
        raise NotFoundError(
            f"the engine has no image of {name}, so its compilers are not known",
            remedy=f"builder toolchain build {name}",
        )
    return cache_of(cache, image)
