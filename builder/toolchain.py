"""Toolchains: images with nvcc, a host compiler and CPython 3.12, the same wherever they are made.

    engine, cache = connect(), InputCache()
    image = ensure_image(engine, load_toolchain("cuda-12.4-debian12"), cache)
    engine.run(image.image_digest, ["nvcc", "--version"], on_line=print)

An image is known by the digest of its inputs, so asking for one that is there costs an instant.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from builder import toolchain_cuda, toolchain_rootfs, toolchain_wheels
from builder.apt import read_package_lock
from builder.cache import InputCache, storage_errors
from builder.engine import Engine
from builder.errors import BuildError
from builder.toolchain_archives import make_archives
from builder.toolchain_definition import Toolchain, load_toolchain, toolchain_names
from builder.toolchain_image import (
    INPUTS_LABEL,
    TOOLCHAIN_LABEL,
    Versions,
    ask_versions,
    build_image,
    find_image,
    image_layers,
    pull_base,
    read_manifest,
    remove_image,
)
from builder.toolchain_packages import packages_of, recorded_packages
from builder.toolchain_rootfs import Drift, drift
from kvreg.console import note
from kvreg.model.canonical import canonical_json

__all__ = [
    "Toolchain",
    "ToolchainImage",
    "ensure_image",
    "find_built",
    "inputs_digest",
    "load_toolchain",
    "toolchain_names",
]


@dataclass(frozen=True)
class ToolchainImage:
    """An image in the engine.

    image_digest: the engine's id of it. inputs: digest of the definition it was made from.
    cuda_version: what nvcc says. packages: (type of package URL, name, version, sha256) of
    everything from Debian or the package index; empty for a pulled image, whose digest covers
    them. record: all of this and more as JSON-ready data, with the layers' digests, by which
    images of two machines compare.
    """

    name: str
    image_digest: str
    inputs: str
    cuda_version: str
    gcc: str
    glibc: str
    python: str
    size: int
    layers: tuple[str, ...]
    packages: tuple[tuple[str, str, str, str], ...]
    record: dict[str, Any]

    @property
    def compilers_digest(self) -> str:
        """Digest of everything but CPython, which is the last layer: the key for caches of
        compiled objects. Unlike the image's id it is the same for equal contents."""
        return "sha256:" + hashlib.sha256("\n".join(self.layers[:-1]).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """The record."""
        return self.record


def inputs_digest(toolchain: Toolchain) -> str:
    """``sha256:<hex>`` over everything that decides the image before anything is downloaded.

    The definition's files with the lock of the CUDA packages, and the layout revisions of the
    code. What a machine adds (which CPython, which point release of Debian) is in the image's
    manifest; the lock of the root file system is only compared with it.
    """
    compared = toolchain.rootfs.lock if toolchain.rootfs is not None else None
    cuda = toolchain_cuda.LAYOUT if toolchain.cuda_wheels is None else toolchain_wheels.LAYOUT
    inputs = {
        "files": {n: digest for n, digest in toolchain.files().items() if n != compared},
        "layout": {"rootfs": toolchain_rootfs.LAYOUT, "cuda": cuda},
    }
    return "sha256:" + hashlib.sha256(canonical_json(inputs)).hexdigest()


def find_built(engine: Engine, toolchain: Toolchain, cache: InputCache) -> ToolchainImage | None:
    """The toolchain's image when the engine has it."""
    inputs = inputs_digest(toolchain)
    image_id = find_image(engine, inputs)
    return None if image_id is None else _describe(engine, toolchain, cache, inputs, image_id)


def ensure_image(
    engine: Engine,
    toolchain: Toolchain,
    cache: InputCache,
    *,
    force: bool = False,
    say: Callable[[str], None] = note,
) -> ToolchainImage:
    """The toolchain's image, built when the engine lacks it.

    force: build although it is there, from what is downloaded. say: told what is being done.

    Raises NotFoundError for absent programs, packages or CPython, NetworkError, UsageError when
    root is needed, VerificationError for wrong bytes, BuildError when a tool fails, StorageError.
    """
    if not force and (found := find_built(engine, toolchain, cache)) is not None:
        return found
    with _alone(cache, toolchain.name, say):
        # Another process may have built it while this one waited.
        if not force and (found := find_built(engine, toolchain, cache)) is not None:
            return found
        return _build(engine, toolchain, cache, say, fresh=force)


def _build(
    engine: Engine,
    toolchain: Toolchain,
    cache: InputCache,
    say: Callable[[str], None],
    *,
    fresh: bool,
) -> ToolchainImage:
    clock = time.monotonic()
    say(f"building toolchain {toolchain.name} (once; later builds find it)")
    inputs = inputs_digest(toolchain)
    labels = {TOOLCHAIN_LABEL: toolchain.name}
    arguments = {}
    if toolchain.base_image is not None:
        names = toolchain_names(toolchain.folder.parent)
        others = tuple(name for name in names if name != toolchain.name)
        arguments["BASE"] = pull_base(engine, toolchain, others)

    def build_base(files: dict[str, Path]) -> str:
        return build_image(
            engine, toolchain, files, target="base", labels=labels, arguments=arguments
        )

    archives = make_archives(engine, toolchain, cache, build_base, say, fresh=fresh)
    say("building the image")
    image_id = build_image(
        engine,
        toolchain,
        archives.files,
        labels={**labels, INPUTS_LABEL: inputs},
        arguments=arguments,
    )
    try:
        image = _describe(engine, toolchain, cache, inputs, image_id)
        _judge(toolchain, image)
    except BaseException:
        remove_image(engine, image_id)  # a broken image must not be found the next time
        raise
    moved = rootfs_drift(toolchain, image.record["packages"])
    if moved:
        say(f"note: Debian's mirror has moved on from what was validated: {moved}")
    say(f"toolchain {toolchain.name} is ready after {time.monotonic() - clock:.0f} s")
    return image


def _judge(toolchain: Toolchain, image: ToolchainImage) -> None:
    found = {"nvcc": image.cuda_version, "glibc": image.glibc}
    expected = {"nvcc": toolchain.cuda, "glibc": toolchain.glibc}
    if found != expected or not image.python.startswith(toolchain.python.version + "."):
        raise BuildError(
            f"the image of {toolchain.name} is not what its definition says",
            expected=f"{expected}, Python {toolchain.python.version}",
            found=f"{found}, Python {image.python}",
        )


def _describe(
    engine: Engine, toolchain: Toolchain, cache: InputCache, inputs: str, image_id: str
) -> ToolchainImage:
    path = cache.folder("toolchains") / "images" / f"{image_id.removeprefix('sha256:')}.json"
    try:
        record = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        record = _ask(engine, toolchain, inputs, image_id)
        _write_json(path, record)
    moved = rootfs_drift(toolchain, record["packages"])
    record["rootfs_drift"] = None if moved is None else moved.to_dict()
    versions = record["versions"]
    return ToolchainImage(
        name=toolchain.name,
        image_digest=image_id,
        inputs=inputs,
        cuda_version=versions["nvcc"],
        gcc=versions["gcc"],
        glibc=versions["glibc"],
        python=versions["python"],
        size=record["size"],
        layers=tuple(record["layers"]),
        packages=recorded_packages(record["packages"]),
        record=record,
    )


def _ask(engine: Engine, toolchain: Toolchain, inputs: str, image_id: str) -> dict[str, Any]:
    manifest = read_manifest(engine, image_id)
    versions: Versions = ask_versions(engine, image_id)
    layers, size = image_layers(engine, image_id)
    return {
        "name": toolchain.name,
        "kind": toolchain.kind,
        "image_digest": image_id,
        "inputs": inputs,
        "layers": list(layers),
        "size": size,
        "cuda_version": versions.nvcc,
        "gcc": versions.gcc,
        "glibc": versions.glibc,
        "versions": asdict(versions),
        "engine": engine.info.to_dict(),
        **{key: manifest[key] for key in ("base_image", "python", "packages")},
    }


def rootfs_drift(toolchain: Toolchain, packages: Iterable[Mapping[str, Any]]) -> Drift | None:
    """How a root file system differs from the validated one; None where none was validated."""
    rootfs = toolchain.rootfs
    if rootfs is None or not (toolchain.folder / rootfs.lock).is_file():
        return None
    return drift(
        read_package_lock(toolchain.folder / rootfs.lock), packages_of(packages, rootfs.suite)
    )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with storage_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(value, indent=1) + "\n", "utf-8")
        temporary.replace(path)


@contextmanager
def _alone(cache: InputCache, name: str, say: Callable[[str], None]) -> Iterator[None]:
    path = cache.folder("toolchains") / f"{name}.lock"
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is building {name}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
