"""The archives that a toolchain's Dockerfile adds: root file system, CUDA tree, CPython."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from builder import toolchain_cuda, toolchain_rootfs, toolchain_wheels
from builder.apt import Package, PrivateApt, read_package_lock
from builder.cache import InputCache, storage_errors
from builder.engine import Engine, Mount
from builder.fetch import bytes_missing, fetch
from builder.index import PackageIndex
from builder.inputs import read_lock
from builder.toolchain_archive import write_archive
from builder.toolchain_cuda import make_cuda_archive
from builder.toolchain_definition import CUDA_HOME, PYTHON_HOME, Toolchain
from builder.toolchain_image import MANIFEST
from builder.toolchain_packages import INDEX
from builder.toolchain_python import (
    Candidate,
    Rejection,
    copy_python,
    find_candidates,
    none_works,
)
from builder.toolchain_rootfs import make_rootfs_archive
from builder.toolchain_wheels import STUBS, make_stubs, make_wheel_archive
from kvreg.console import progress
from kvreg.model.canonical import canonical_json

Say = Callable[[str], None]


@dataclass
class Archives:
    """files: archives by the name that the Dockerfile has for them. packages: what they were
    made of, by Debian suite or `INDEX`."""

    files: dict[str, Path] = field(default_factory=dict)
    packages: dict[str, tuple[Package, ...]] = field(default_factory=dict)


def make_archives(
    engine: Engine,
    toolchain: Toolchain,
    cache: InputCache,
    build_base: Callable[[dict[str, Path]], str],
    say: Say,
    *,
    fresh: bool = False,
) -> Archives:
    """Everything that the Dockerfile adds; what is in the cache is taken from there.

    build_base: builds the stage ``base`` from the archives so far and returns its image, in which
    the copied CPython is made at home. fresh: make the root file system anew. Raises what the
    makers of the single archives raise.
    """
    store = cache.folder("toolchains")
    archives = Archives()
    if toolchain.kind == "debootstrap":
        with ThreadPoolExecutor(1) as pool:
            # debootstrap mostly waits for the disk, the other for the network and one core.
            apt = _apt(toolchain, cache)
            mirror = apt.update()
            rootfs = pool.submit(_rootfs, toolchain, cache, store, mirror, fresh, say)
            if toolchain.cuda_wheels is not None:
                cuda, locked = _cuda_of_wheels(toolchain, cache, store, say)
            else:
                cuda, locked = _cuda(toolchain, cache, store, apt, say)
            root_tar, installed = rootfs.result()
        archives.files = {"rootfs.tar": root_tar, "cuda.tar": cuda}
        assert toolchain.rootfs is not None
        wanted = toolchain.cuda_packages
        archives.packages = {
            toolchain.rootfs.suite: installed,
            (INDEX if wanted is None else wanted.suite): locked,
        }
    base = build_base(archives.files)
    python = _python(engine, toolchain, cache, base, archives, say)
    archives.files["python.tar"] = python
    return archives


def _apt(toolchain: Toolchain, cache: InputCache) -> PrivateApt:
    wanted, rootfs = toolchain.cuda_packages, toolchain.rootfs
    assert rootfs is not None
    suite = rootfs.suite if wanted is None else wanted.suite
    components = ("main",) if wanted is None else wanted.components
    return PrivateApt(cache.folder("apt") / suite, suite, components)


def _rootfs(
    toolchain: Toolchain, cache: InputCache, store: Path, mirror: str, fresh: bool, say: Say
) -> tuple[Path, tuple[Package, ...]]:
    rootfs = toolchain.rootfs
    assert rootfs is not None
    key = _key(asdict(rootfs), toolchain_rootfs.LAYOUT, toolchain.source_date_epoch)
    tar, listing = store / f"rootfs-{key}.tar", store / f"rootfs-{key}.json"
    if not fresh and tar.exists() and listing.exists():
        say("the root file system is in the cache")
        return tar, tuple(Package(**p) for p in json.loads(listing.read_text("utf-8")))
    say(f"debootstrap: Debian {rootfs.suite} with {len(rootfs.include)} packages more")
    steps = 0

    def follow(line: str) -> None:
        nonlocal steps
        if toolchain_rootfs.is_step(line):
            steps += 1
            if steps % 100 == 0:
                say(f"debootstrap: {line.removeprefix('I: ').rstrip('.')} (step {steps})")

    work = store / f"work-rootfs-{os.getpid()}"
    try:
        _, packages = make_rootfs_archive(
            rootfs, mirror, cache, work, tar, epoch=toolchain.source_date_epoch, say=follow
        )
    finally:
        shutil.rmtree(work, ignore_errors=True)
    with storage_errors("write", listing):
        listing.write_text(json.dumps([asdict(p) for p in packages]), "utf-8")
    say(f"the root file system is made: {len(packages)} packages")
    return tar, packages


def _cuda(
    toolchain: Toolchain, cache: InputCache, store: Path, apt: PrivateApt, say: Say
) -> tuple[Path, tuple[Package, ...]]:
    wanted = toolchain.cuda_packages
    assert wanted is not None
    locked = read_package_lock(toolchain.folder / wanted.lock)
    key = _key([asdict(p) for p in locked], toolchain_cuda.LAYOUT, toolchain.source_date_epoch)
    tar = store / f"cuda-{key}.tar"
    if tar.exists():
        say("the CUDA tree is in the cache")
        return tar, locked
    missing = sum(p.size for p in locked if not cache.has(p.sha256))
    if missing:
        say(f"downloading {missing / 1e6:,.0f} MB of CUDA packages")
        with progress(missing, "CUDA packages") as bar:
            apt.fetch(locked, cache, bar.update)
    say("unpacking the CUDA packages")
    work = store / f"work-cuda-{os.getpid()}"
    try:
        make_cuda_archive(locked, cache, work, tar, epoch=toolchain.source_date_epoch)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return tar, locked


def _cuda_of_wheels(
    toolchain: Toolchain, cache: InputCache, store: Path, say: Say
) -> tuple[Path, tuple[Package, ...]]:
    wanted = toolchain.cuda_wheels
    assert wanted is not None
    locked = read_lock(toolchain.folder / wanted.lock)
    packages = tuple(Package(i.name, i.version, "x86_64", i.size, i.sha256) for i in locked)
    key = _key([asdict(i) for i in locked], toolchain_wheels.LAYOUT, toolchain.source_date_epoch)
    tar = store / f"cuda-{key}.tar"
    if tar.exists():
        say("the CUDA tree is in the cache")
        return tar, packages
    if missing := bytes_missing(locked, cache):
        say(f"downloading {missing / 1e6:,.0f} MB of CUDA wheels")
        with progress(missing, "CUDA wheels") as bar:
            fetch(locked, cache, PackageIndex(), bar.update)
    say("unpacking the CUDA wheels")
    work = store / f"work-cuda-{os.getpid()}"
    try:
        make_wheel_archive(locked, cache, work, tar, epoch=toolchain.source_date_epoch)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return tar, packages


def _stubs(
    engine: Engine, toolchain: Toolchain, base: str, archives: Archives, target: Path
) -> None:
    """What stands for libraries that wheels do not hold, made in the base image."""
    if toolchain.cuda_wheels is None:
        return
    with tarfile.open(archives.files["cuda.tar"]) as tree:

        def read_header(name: str) -> str:
            member = tree.extractfile(f"{CUDA_HOME.lstrip('/')}/include/{name}")
            assert member is not None
            return member.read().decode("utf-8", "replace")

        user = f"{os.geteuid()}:{os.getegid()}"
        make_stubs(engine, base, toolchain.cuda_wheels.stubs, read_header, target, user=user)


def _python(
    engine: Engine,
    toolchain: Toolchain,
    cache: InputCache,
    base: str,
    archives: Archives,
    say: Say,
) -> Path:
    """CPython at home in the base image, stubs that its compiler made, and the image's manifest,
    as one tar for ``/``."""
    store = cache.folder("toolchains")
    work = store / f"work-python-{os.getpid()}"
    rejections: list[Rejection] = []
    try:
        for found in find_candidates(toolchain.python, cache, os.environ, say):
            if isinstance(found, Rejection):
                rejections.append(found)
                continue
            say(f"CPython {found.version} ({found.origin})")
            home = work / PYTHON_HOME.lstrip("/")
            copy_python(found, home)
            dropped = _settle(engine, toolchain, base, found, home)
            if isinstance(dropped, Rejection):
                rejections.append(dropped)
                continue
            manifest = _manifest(toolchain, archives, found, dropped)
            path = work / MANIFEST.lstrip("/")
            path.parent.mkdir(parents=True)
            path.write_bytes(canonical_json(manifest) + b"\n")
            _stubs(engine, toolchain, base, archives, work / STUBS.lstrip("/"))
            tar = store / f"python-{toolchain.name}.tar"
            write_archive(work, tar, epoch=toolchain.source_date_epoch, owner=(0, 0))
            return tar
    finally:
        shutil.rmtree(work, ignore_errors=True)
    raise none_works(rejections)


def _settle(
    engine: Engine, toolchain: Toolchain, base: str, candidate: Candidate, home: Path
) -> list[str] | Rejection:
    """Run ``python.sh`` in the base image; the modules it dropped, or why the copy won't do."""
    lines: list[str] = []
    script = "/python.sh"
    result = engine.run(
        base,
        ["/bin/sh", script],
        mounts=[
            Mount(home, PYTHON_HOME, read_only=False),
            Mount(toolchain.folder / "python.sh", script),
        ],
        environment={"KVREG_PORTABLE": "1" if candidate.portable else "0"},
        user=f"{os.geteuid()}:{os.getegid()}",
        on_line=lines.append,
    )
    if result.exit_code != 0:
        reason = f"does not work in the image: {'; '.join(lines[-2:]) or result.exit_code}"
        return Rejection(candidate.origin, str(candidate.executable), reason)
    return [line.removeprefix("::dropped ").strip() for line in lines if "::dropped" in line]


def _manifest(
    toolchain: Toolchain, archives: Archives, python: Candidate, dropped: list[str]
) -> dict[str, Any]:
    base = toolchain.base_image
    return {
        "name": toolchain.name,
        "base_image": None if base is None else toolchain.to_dict()["base_image"],
        "python": {**python.to_dict(), "dropped_modules": dropped},
        "packages": [
            {"suite": suite, **asdict(package)}
            for suite, packages in archives.packages.items()
            for package in packages
        ],
    }


def _key(*parts: Any) -> str:
    return hashlib.sha256(canonical_json(list(parts))).hexdigest()[:16]
