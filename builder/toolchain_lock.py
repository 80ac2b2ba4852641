"""Writing the package locks of toolchains that are made from Debian's packages."""

from __future__ import annotations

from pathlib import Path

from builder.apt import Package, PrivateApt, write_package_lock
from builder.cache import InputCache
from builder.engine import Engine
from builder.index import PackageIndex
from builder.toolchain import find_built
from builder.toolchain_definition import Toolchain
from builder.toolchain_packages import packages_of
from builder.toolchain_wheels import lock_wheels
from kvreg.errors import NotFoundError, UsageError


def lock_cuda(toolchain: Toolchain, cache: InputCache) -> Path:
    """Lock the CUDA packages as the mirror has them now, or the wheels that the definition names;
    returns the file.

    Raises UsageError for a toolchain without either, NotFoundError, NetworkError.
    """
    if toolchain.cuda_wheels is not None:
        return lock_wheels(toolchain, toolchain.cuda_wheels, PackageIndex())
    wanted = toolchain.cuda_packages
    if wanted is None:
        raise _nothing_to_lock(toolchain)
    apt = PrivateApt(cache.folder("apt") / wanted.suite, wanted.suite, wanted.components)
    apt.update()
    packages = [
        Package(found.name, found.version, found.architecture, found.size, found.sha256)
        for found in apt.locate(wanted.names)
    ]
    path = toolchain.folder / wanted.lock
    write_package_lock(
        path,
        packages,
        f"nvcc, headers and stubs: packages of Debian {wanted.suite}, exact.\n"
        f"Written by `builder toolchain lock {toolchain.name}`.",
    )
    return path


def lock_rootfs(engine: Engine, toolchain: Toolchain, cache: InputCache) -> Path:
    """Record the base packages of the built image as validated; returns the file.

    Raises UsageError for a toolchain without a root file system, NotFoundError when the image is
    not built.
    """
    if toolchain.rootfs is None:
        raise _nothing_to_lock(toolchain)
    image = find_built(engine, toolchain, cache)
    if image is None:
        raise NotFoundError(
            f"the image of {toolchain.name} is not built, so there is nothing to record",
            remedy=f"build it with: builder toolchain build {toolchain.name}",
        )
    path = toolchain.folder / toolchain.rootfs.lock
    write_package_lock(
        path,
        packages_of(image.record["packages"], toolchain.rootfs.suite),
        f"The root file system's packages of Debian {toolchain.rootfs.suite} as validated: "
        "compared, not enforced,\nbecause a point release replaces them on the mirrors.\n"
        f"Written by `builder toolchain lock {toolchain.name} --rootfs`.",
    )
    return path


def _nothing_to_lock(toolchain: Toolchain) -> UsageError:
    return UsageError(
        f"{toolchain.name} is not made from Debian's packages",
        expected="a toolchain of kind debootstrap",
        found=f"kind {toolchain.kind}",
    )
