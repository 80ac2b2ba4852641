"""The overlay lock as a file: a requirements text for pip, explained entry by entry."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from builder.cache import InputCache, storage_errors
from builder.fetch import bytes_missing, fetch, missing
from builder.freeze import freeze_text
from builder.index import PackageIndex
from builder.inputs import Input
from builder.overlay import Chosen, Need, Overlay
from kvreg.console import progress
from kvreg.errors import ContractError, NotFoundError, UsageError
from kvreg.model.oci import MEDIA_TYPE_OVERLAY_LOCK
from kvreg.model.profile import Profile
from kvreg.overlay import LOCK_KEY, OverlayEntry, parse_lock
from kvreg.wheel.tags import parse_wheel_name, same_name, same_version

if TYPE_CHECKING:
    from registry.publish import Layer

FILE = "overlay.lock"

_WHEEL = re.compile(r"^# wheel: (\S+) \((\d+) bytes\)\n(?:#[^\n]*\n)*([^#\s]\S*) ", re.M)
_HOST = "# host: "


def lock_text(
    overlay: Overlay, profile: Profile, host: Mapping[str, str], exclude_newer: str
) -> str:
    """The file's whole content; a function of its arguments alone."""
    entries = overlay.entries
    shadows = [entry for entry in entries if entry.host_version is not None]
    total = sum(entry.size for entry in entries)
    policy = profile.overlay
    python = ".".join(profile.host.python.validated.split(".")[:2])
    lines = [
        f"# Overlay of profile {profile.name}: what {profile.runtime.package} needs and the host"
        " lacks.",
        f"# Written by: builder overlay lock --profile {profile.name}",
        "# For the host of host-freeze.txt"
        f" (sha256:{hashlib.sha256(freeze_text(host).encode()).hexdigest()}),",
        f"# CPython {python}, {profile.host.arch.validated}, glibc {profile.host.glibc.validated}"
        + (f", as of {exclude_newer}." if exclude_newer else "."),
        f"# {len(entries)} wheels, {total:,} bytes: {len(entries) - len(shadows)} that the host"
        f" lacks, {len(shadows)} that shadow the host's own.",
        f"# {len(overlay.kept)} packages of the host serve as they are: those at the end.",
    ]
    if policy and policy.extras:
        lines.append(f"# Extras: {', '.join(policy.extras)}.")
    for item in policy.omissions if policy else ():
        what = f"the wheel's own {item.name}" if item.direct else item.name
        lines.append(f"# Left out: {what}: {item.reason}.")
    for name, date in sorted(policy.exclude_newer_package.items()) if policy else ():
        lines.append(f"# {name} as of {date}.")
    for need in overlay.broken:
        lines.append(f"# The host does not meet its own: {need}.")
    for entry in entries:
        lines += ["", *_entry(entry)]
    lines += ["", *(f"{_HOST}{name}=={version}" for name, version in overlay.kept.items())]
    return "\n".join(lines) + "\n"


def _entry(entry: Chosen) -> list[str]:
    if entry.host_version is None:
        why = [f"# absent on the host; {_list(entry.because)}"]
    else:
        why = [f"# shadows the host's {entry.host_version}; {_list(entry.because)}"]
    if entry.affects:
        why.append(f"# seen instead by the host's: {_list(entry.affects)}")
    return [
        f"# wheel: {entry.file.filename} ({entry.size} bytes)",
        *why,
        f"{entry.name}=={entry.version} --hash=sha256:{entry.file.sha256}",
    ]


def _list(found: Iterable[Need]) -> str:
    return "; ".join(dict.fromkeys(map(str, found)))


def kept_packages(lock: str) -> dict[str, str]:
    """The host's packages that an overlay lock counts on: name -> version."""
    lines = [line.removeprefix(_HOST) for line in lock.splitlines() if line.startswith(_HOST)]
    return dict(line.split("==", 1) for line in lines)


def wheel_metadata(wheel: Path | None, build_folder: Path, profile: Profile) -> bytes:
    """METADATA of the runtime's wheel: the named one, else the finished build's.

    Raises NotFoundError, and ContractError when it is another package or version.
    """
    found = [wheel] if wheel else sorted(build_folder.glob("*.whl"))
    if len(found) != 1 or not found[0].is_file():
        raise NotFoundError(
            f"the runtime's wheel is needed for what it requires: {profile.runtime.package}"
            f" {profile.runtime.version}",
            found=str(wheel) if wheel else f"no wheel in {build_folder}",
            remedy=f"builder build --profile {profile.name}, or --wheel FILE",
        )
    name = parse_wheel_name(found[0].name)
    runtime = profile.runtime
    if not same_name(name.name, runtime.package) or not same_version(name.version, runtime.version):
        raise ContractError(
            f"{found[0].name} is not the wheel of profile {profile.name}",
            expected=f"{runtime.package} {runtime.version}",
            found=f"{name.name} {name.version}",
        )
    with zipfile.ZipFile(found[0]) as archive:
        member = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return archive.read(member)


def overlay_inputs(profile: Profile, folder: Path) -> tuple[Input, ...]:
    """The wheels of a profile's overlay lock; none when it has no overlay.

    Raises NotFoundError, VerificationError, UsageError for a lock that does not name its files,
    ContractError for one that would bring a protected package.
    """
    lock = profile.locks.get(LOCK_KEY)
    if lock is None:
        return ()
    path = folder / lock.file
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise NotFoundError(
            f"there is no {path}", remedy=f"builder overlay lock --profile {profile.name}"
        ) from None
    files = {
        entry.partition("==")[0]: (filename, int(size))
        for filename, size, entry in _WHEEL.findall(raw.decode("utf-8", "replace"))
    }
    return tuple(_input(entry, files, path) for entry in parse_lock(raw))


def _input(entry: OverlayEntry, files: Mapping[str, tuple[str, int]], path: Path) -> Input:
    filename, size = files.get(entry.name, ("", 0))
    name = parse_wheel_name(filename) if filename else None
    if (
        name is None
        or not same_name(name.name, entry.name)
        or not same_version(name.version, entry.version)
    ):
        raise UsageError(
            f"{path.name} does not say which file {entry.name} {entry.version} is",
            expected="# wheel: FILE (N bytes) before the entry",
            found=filename or "no such line",
            remedy="write it anew with: builder overlay lock",
        )
    return Input(entry.name, entry.version, "wheel", filename, size, entry.sha256)


def overlay_layers(profile: Profile, folder: Path, cache: InputCache) -> list[Layer]:
    """The layers of a profile's overlay, none when it has none: the lock, and every wheel of it.

    Wheels that the cache lacks are fetched by hash; they lie in it under the names that they are
    published with. Raises what `overlay_inputs` and fetching raise.
    """
    from registry.publish import Layer

    inputs = overlay_inputs(profile, folder)
    if not inputs:
        return []
    if absent := missing(inputs, cache):
        with progress(bytes_missing(absent, cache), "fetching the overlay") as bar:
            fetch(absent, cache, PackageIndex(), bar.update)
    lock = folder / profile.locks[LOCK_KEY].file
    named = cache.folder("overlay")
    return [
        Layer(lock, MEDIA_TYPE_OVERLAY_LOCK),
        *(Layer(_named(item, named, cache), role="overlay") for item in inputs),
    ]


def _named(item: Input, folder: Path, cache: InputCache) -> Path:
    """A link of the wheel's own name to its bytes: a layer's title is its file's name."""
    # By digest, since two builds of one wheel may share the name.
    path = folder / item.sha256[:16] / item.filename
    with storage_errors("make link", path):
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(cache.path(item.sha256).resolve())
    return path
