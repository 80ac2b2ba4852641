"""``kvreg show``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kvreg.acquisition import LockPolicy, kept_manifest, request_of
from kvreg.activation import find_runtime
from kvreg.artifact import wheel_layers
from kvreg.commands.options import (
    home_option,
    lock_option,
    profile_argument,
    registry_option,
    timeout_option,
)
from kvreg.commands.profile import host_contract
from kvreg.commands.resolve import lock_state, lock_text
from kvreg.console import emit, handled, human_bytes, json_option
from kvreg.errors import NotFoundError
from kvreg.home import Home
from kvreg.lockfile import LOCK_FILE, read_lockfile
from kvreg.model.profile import Profile, profile_from_canonical
from kvreg.resolution import STAGED, Resolution, Resolver, candidates
from kvreg.runtime import Runtime
from kvreg.sources import open_source

_UNCHECKED = "not checked: no key was given when it was pulled"


@dataclass(frozen=True)
class Wheel:
    """A wheel of an artifact; `size` is of the file, in bytes, where it is known."""

    filename: str
    role: str
    digest: str
    size: int | None


@dataclass(frozen=True)
class Page:
    """An artifact with its profile; `runtime` where it is staged."""

    profile: Profile
    resolution: Resolution
    wheels: tuple[Wheel, ...]
    runtime: Runtime | None
    lock: dict[str, str | None]

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        runtime = self.runtime
        return {
            "profile": self.profile.to_dict(),
            "resolution": self.resolution.to_dict(),
            "wheels": [vars(wheel) for wheel in self.wheels],
            "staged": {**runtime.to_dict(), "folder": str(runtime.folder)} if runtime else None,
            "lock": self.lock,
        }


@click.command("show")
@profile_argument
@registry_option
@lock_option
@home_option
@timeout_option
@json_option
@handled
def command(
    profile: str,
    registry: str | None,
    lock: Path | None,
    home: Path | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Show a staged runtime, or the artifact that would be pulled.

    A page: its profile, what it asks of the host, its wheels and sizes, signature and lock. With
    --registry it is the artifact there; without, it is what is staged, if anything is.

    \b
    Examples:
      kvreg show t4x2-cu128
      kvreg show t4x2-cu128 --registry registry.example/team/runtimes
      kvreg show sha256:<profile digest> --json
    """
    place = Home.find(home)
    page = None if registry else _staged(place, profile, lock)
    if page is None:
        page = _resolved(profile, registry, lock, timeout)
    emit(page, as_json, _text)


def _staged(home: Home, text: str, lock: Path | None) -> Page | None:
    try:
        runtime = find_runtime(home, text)
    except NotFoundError:
        return None
    manifest = kept_manifest(home, runtime)
    sizes = {layer.digest: layer.size for layer in manifest.layers} if manifest else {}
    wheels = tuple(
        Wheel(item.filename, item.role, digest, sizes.get(digest))
        for item in runtime.wheels
        for digest in [f"sha256:{item.sha256}"]
    )
    resolution = Resolution(
        name=runtime.profile_name,
        profile_digest=runtime.profile_digest,
        manifest_digest=runtime.manifest_digest,
        source=runtime.reference,
        origin=STAGED,
        tried=(),
        blobs={wheel.filename: wheel.digest for wheel in wheels},
        size=sum(sizes.values()) if manifest else None,
    )
    return Page(runtime.profile(), resolution, wheels, runtime, _lock(resolution, lock))


def _resolved(text: str, registry: str | None, lock: Path | None, timeout: float) -> Page:
    resolver = Resolver(
        request_of(text, LockPolicy()),
        candidates(registry),
        lambda reference: open_source(reference, timeout=timeout),
    )
    artifact, source = resolver.artifact(), resolver.open()
    profile = profile_from_canonical(source.read_small(artifact.manifest.config))
    wheels = tuple(
        Wheel(layer.name.filename, layer.role, layer.descriptor.digest, layer.descriptor.size)
        for layer in wheel_layers(artifact, profile)
    )
    resolution = resolver.resolution()
    return Page(profile, resolution, wheels, None, _lock(resolution, lock))


def _lock(resolution: Resolution, path: Path | None) -> dict[str, str | None]:
    return lock_state(resolution, read_lockfile(path or Path(LOCK_FILE)))


def _text(page: Page) -> str:
    profile, resolution, runtime = page.profile, page.resolution, page.runtime
    lines = [
        f"{profile.name}: {profile.summary}",
        f"profile   {resolution.profile_digest}",
        f"artifact  {resolution.manifest_digest}",
        f"from      {resolution.source}",
    ]
    lines += [
        f"wheel     {wheel.filename} ({wheel.role}"
        + (f", {human_bytes(wheel.size)})" if wheel.size is not None else ")")
        for wheel in page.wheels
    ]
    if runtime is None:
        lines.append("staged    no")
    else:
        signature = runtime.signature
        lines += [
            f"staged    {runtime.created} by kvreg {runtime.kvreg_version}, in {runtime.folder}",
            f"files     {runtime.files} ({human_bytes(runtime.bytes)})",
            f"signed    {f'by the key {signature.key}' if signature else _UNCHECKED}",
        ]
    lines += [f"lock      {lock_text(page.lock)}", "", *host_contract(profile)]
    return "\n".join(lines)
