"""`builder toolchain`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from builder.commands.options import cache_option, open_cache
from kvreg.console import emit, handled, human_bytes, json_option, note


@click.group()
def toolchain() -> None:
    """Show and build the container images that wheels are compiled in.

    \b
    Examples:
      builder toolchain list
      builder toolchain build cuda-12.4-debian12
      builder toolchain show cuda-12.4-debian12 --json
    """


@toolchain.command("list")
@cache_option
@json_option
@handled
def list_(cache_root: Path | None, as_json: bool) -> None:
    """List the toolchains and whether this machine's engine has their images.

    \b
    Examples:
      builder toolchain list
      builder toolchain list --json
    """
    from builder.toolchain import load_toolchain, toolchain_names

    with _engine_if_any() as engine:
        result = [_summary(engine, load_toolchain(name), cache_root) for name in toolchain_names()]
    emit(result, as_json, _table)


@toolchain.command()
@click.argument("name")
@cache_option
@json_option
@handled
def show(name: str, cache_root: Path | None, as_json: bool) -> None:
    """Show a toolchain's definition and, when it is built, its image's record.

    \b
    Examples:
      builder toolchain show cuda-12.8.1-ubuntu22.04
      builder toolchain show cuda-12.4-debian12 --json
    """
    from builder.toolchain import find_built, inputs_digest, load_toolchain

    definition = load_toolchain(name)
    with _engine_if_any() as engine:
        image = None if engine is None else find_built(engine, definition, open_cache(cache_root))
    result = {
        "definition": definition.to_dict(),
        "inputs": inputs_digest(definition),
        "image": None if image is None else image.to_dict(),
    }
    emit(result, as_json, _page)


@toolchain.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Build anew though the image is there.")
@cache_option
@json_option
@handled
def build(name: str, force: bool, cache_root: Path | None, as_json: bool) -> None:
    """Build a toolchain's image; does nothing when the engine has it.

    Making the Debian one needs root, debootstrap and about 3 GB of disk; what was downloaded
    stays in the input cache. CPython 3.12 is copied from this machine where there is one that
    works in the image (KVREG_PYTHON312 names it outright), else a pinned build is downloaded.

    \b
    Examples:
      builder toolchain build cuda-12.4-debian12
      KVREG_PYTHON312=/opt/python/bin/python3.12 builder toolchain build cuda-12.4-debian12 --force
    """
    from builder.engine import connect
    from builder.toolchain import ensure_image, load_toolchain

    definition = load_toolchain(name)
    with connect() as engine:
        image = ensure_image(engine, definition, open_cache(cache_root), force=force, say=note)
    emit(image, as_json, lambda found: _image(found.to_dict()))


@toolchain.command()
@click.argument("name")
@click.option("--rootfs", is_flag=True, help="Also record the built image's base packages.")
@cache_option
@json_option
@handled
def lock(name: str, rootfs: bool, cache_root: Path | None, as_json: bool) -> None:
    """Write the package locks of a toolchain made from Debian's packages.

    The CUDA packages are locked as the mirror has them now. With --rootfs the base packages of
    the image that is built are recorded as validated.

    \b
    Examples:
      builder toolchain lock cuda-12.4-debian12
      builder toolchain lock cuda-12.4-debian12 --rootfs --json
    """
    from builder.toolchain import load_toolchain
    from builder.toolchain_lock import lock_cuda, lock_rootfs

    definition = load_toolchain(name)
    cache = open_cache(cache_root)
    written = {definition.folder.name: [lock_cuda(definition, cache).name]}
    if rootfs:
        from builder.engine import connect

        with connect() as engine:
            written[definition.folder.name].append(lock_rootfs(engine, definition, cache).name)
    emit(written, as_json, lambda w: f"wrote {', '.join(w[definition.folder.name])}")


def _engine_if_any() -> Any:
    """The engine, or a context of None: what is defined can be shown without one."""
    from contextlib import nullcontext

    from builder.engine import connect
    from kvreg.errors import NotFoundError

    try:
        return connect()
    except NotFoundError as error:
        note(f"note: {error.what}, so images cannot be looked for")
        return nullcontext()


def _summary(engine: Any, definition: Any, cache_root: Path | None) -> dict[str, Any]:
    from builder.toolchain import find_built

    image = None if engine is None else find_built(engine, definition, open_cache(cache_root))
    return {
        "name": definition.name,
        "kind": definition.kind,
        "cuda": definition.cuda,
        "summary": definition.summary,
        "image": None if image is None else image.image_digest,
        "python": None if image is None else image.python,
        "size": None if image is None else image.size,
    }


def _table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        state = "not built"
        if row["image"]:
            state = f"{row['image'][:19]}, {human_bytes(row['size'])}, Python {row['python']}"
        lines += [f"{row['name']}  ({state})", f"  {row['summary']}"]
    return "\n".join(lines)


def _page(result: dict[str, Any]) -> str:
    definition = result["definition"]
    lines = [f"{definition['name']} ({definition['kind']})", f"  {definition['summary']}"]
    lines.append(f"  inputs    {result['inputs']}")
    if "base_image" in definition:
        lines.append(f"  base      {definition['base_image']['name']}")
        lines += [f"            {digest}" for digest in definition["base_image"]["digests"]]
    lines.append(f"  python    {definition['python']['version']}: ")
    lines[-1] += ", ".join(definition["python"]["origins"])
    if result["image"] is None:
        return "\n".join(
            [*lines, f"  image     none; builder toolchain build {definition['name']}"]
        )
    return "\n".join(lines) + "\n" + _image(result["image"])


def _image(record: dict[str, Any]) -> str:
    versions = record["versions"]
    python = record["python"]
    lines = [
        f"  image     {record['image_digest']} ({human_bytes(record['size'])})",
        f"  compilers nvcc {versions['nvcc']}, gcc {versions['gcc']}, "
        f"binutils {versions['binutils']}, ccache {versions['ccache'] or 'none'}",
        f"  glibc     {versions['glibc']}",
        f"  python    {python['version']} ({python['origin']})",
        f"  packages  {len(record['packages'])} with version and sha256",
    ]
    drift = record["rootfs_drift"]
    if drift is not None:
        moved = sum(len(entries) for entries in drift.values())
        lines.append(f"  drift     {moved} base packages differ from the validated ones")
    return "\n".join(lines)
