"""What an artifact is, for people and programs: manifest, profile, files and referrers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from kvreg.console import human_bytes
from kvreg.errors import NotFoundError
from kvreg.model.oci import MEDIA_TYPE_PROFILE, Descriptor
from kvreg.model.profile import Profile, profile_from_canonical
from registry.content import Content, parse_content
from registry.store import Store, read_small
from registry.text import printable


@dataclass(frozen=True)
class Description:
    """An artifact as a store shows it; `profile` is None for what is not a runtime."""

    location: str
    content: Content
    profile: Profile | None
    referrers: tuple[Descriptor, ...]

    @property
    def total_bytes(self) -> int:
        """Size of all blobs of the artifact itself."""
        return sum(blob.size for blob in self.content.blobs)

    def to_dict(self) -> dict[str, object]:
        """As JSON-ready data."""
        content = self.content
        found: dict[str, object] = {
            "location": self.location,
            **content.descriptor.to_dict(),
            "annotations": dict(content.annotations),
            "totalBytes": self.total_bytes,
        }
        if content.config is not None:
            found["config"] = content.config.to_dict()
            found["layers"] = [layer.to_dict() for layer in content.layers]
        if content.manifests:
            found["manifests"] = [item.to_dict() for item in content.manifests]
        if content.subject is not None:
            found["subject"] = content.subject.to_dict()
        if self.profile is not None:
            found["profile"] = json.loads(self.profile.canonical())
        found["referrers"] = [referrer.to_dict() for referrer in self.referrers]
        return found

    def text(self) -> str:
        """As a page for a terminal."""
        content = self.content
        lines = [
            f"{self.location}@{content.descriptor.digest}",
            f"  type      {content.descriptor.artifact_type or content.descriptor.media_type}",
        ]
        if profile := self.profile:
            lines += [
                f"  profile   {profile.name} {profile.digest}",
                f"  runtime   {profile.runtime.package} {profile.runtime.version}",
                f"  host      Python {profile.host.python.require}, torch"
                f" {profile.host.torch.require}, {profile.host.gpu.count.require}"
                f" x {profile.host.gpu.name.require}",
            ]
        lines.append(f"  size      {human_bytes(self.total_bytes)}")
        lines += _section("files", [_file(layer) for layer in content.layers])
        lines += _section("manifests", [_file(item) for item in content.manifests])
        lines += _section("annotations", _pairs(content.annotations))
        lines += _section("referrers", [_referrer(item) for item in self.referrers] or ["none"])
        return "\n".join(lines)


def describe(store: Store, reference: str) -> Description:
    """Read what the tag or digest `reference` names. `NotFoundError` when there is none."""
    found = store.resolve(reference)
    if found is None:
        raise NotFoundError(f"{store.location} has no {reference}")
    content = parse_content(store.fetch_manifest(found.digest), found.media_type)
    profile = None
    config = content.config
    if config is not None and config.media_type == MEDIA_TYPE_PROFILE:
        profile = profile_from_canonical(read_small(store, config))
    return Description(store.location, content, profile, store.referrers(found.digest))


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"  {title}", *(f"    {line}" for line in lines)] if lines else []


def _file(item: Descriptor) -> str:
    title = printable(item.title or item.media_type)
    role = f" ({printable(item.role)})" if item.role else ""
    return f"{title}{role}  {human_bytes(item.size)}  {item.digest}"


def _pairs(annotations: Mapping[str, str]) -> list[str]:
    return [f"{printable(key)} = {printable(value)}" for key, value in sorted(annotations.items())]


def _referrer(item: Descriptor) -> str:
    return f"{item.artifact_type or item.media_type}  {human_bytes(item.size)}  {item.digest}"
