"""What an artifact is, for people and programs: manifest, profile, files and attestations."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvreg.console import human_bytes
from kvreg.errors import KvregError, NotFoundError, VerificationError
from kvreg.model.oci import (
    MEDIA_TYPE_EVIDENCE,
    MEDIA_TYPE_PROFILE,
    MEDIA_TYPE_PROVENANCE,
    MEDIA_TYPE_SBOM,
    Descriptor,
)
from kvreg.model.profile import Profile, profile_from_canonical
from kvreg.model.signature import MEDIA_TYPE_BUNDLE, MEDIA_TYPE_SIMPLE_SIGNING
from registry.content import Content, parse_content
from registry.referrers import cosign_tags
from registry.store import Store, read_small
from registry.text import printable

MEDIA_TYPE_VERDICT = "application/vnd.kvreg.rebuild-verdict.v1+json"
ANNOTATION_VERDICT = "vnd.kvreg.rebuild.verdict"
"""On the manifest of a rebuild's verdict: ``identical``, ``different`` or ``not-comparable``."""

_KINDS = {
    MEDIA_TYPE_SBOM: "SBOM (CycloneDX)",
    MEDIA_TYPE_PROVENANCE: "provenance (in-toto)",
    MEDIA_TYPE_EVIDENCE: "evidence",
    "application/vnd.kvreg.build-record.v1+json": "build record",
    MEDIA_TYPE_VERDICT: "rebuild verdict",
    MEDIA_TYPE_BUNDLE: "signature (bundle)",
    MEDIA_TYPE_SIMPLE_SIGNING: "signature (simple signing)",
}


@dataclass(frozen=True)
class Attestation:
    """A referrer with its files, and what refers to it in turn.

    `problem` says why its manifest could not be read; it has no files then. `tag` is where it was
    found when it is no referrer, as cosign's older signatures are.
    """

    descriptor: Descriptor
    files: tuple[Descriptor, ...] = ()
    attestations: tuple["Attestation", ...] = ()
    problem: str | None = None
    tag: str | None = None

    @property
    def kind(self) -> str:
        """Its type in words, or as it is."""
        if self.tag is not None and self.files:
            return _KINDS.get(self.files[0].media_type, self.files[0].media_type)
        return kind_of(self.descriptor)

    def to_dict(self) -> dict[str, object]:
        """As JSON-ready data."""
        return {
            **self.descriptor.to_dict(),
            "files": [item.to_dict() for item in self.files],
            **({"tag": self.tag} if self.tag else {}),
            **({"problem": self.problem} if self.problem else {}),
            **(
                {"referrers": [i.to_dict() for i in self.attestations]} if self.attestations else {}
            ),
        }


@dataclass(frozen=True)
class Description:
    """An artifact as a store shows it; `profile` is None for what is not a runtime."""

    location: str
    content: Content
    profile: Profile | None
    attestations: tuple[Attestation, ...]

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
        found["referrers"] = [item.to_dict() for item in self.attestations]
        return found

    def text(self) -> str:
        """As a page for a terminal."""
        content = self.content
        lines = [
            f"{self.location}@{content.descriptor.digest}",
            f"  type      {content.descriptor.artifact_type or content.descriptor.media_type}",
        ]
        if self.profile:
            lines += _profile(self.profile)
        if content.subject:
            lines.append(f"  about     {content.subject.digest}")
        lines.append(f"  size      {human_bytes(self.total_bytes)}")
        lines += _section("files", [_file(layer) for layer in content.layers])
        lines += _section("manifests", [_file(item) for item in content.manifests])
        if self.profile:
            lines += _section("host", _host(self.profile))
        lines += _section("annotations", _pairs(content.annotations))
        lines += _section("attestations", list(_attestations(self.attestations)) or ["none"])
        return "\n".join(lines)


def describe(store: Store, reference: str) -> Description:
    """Read what the tag or digest `reference` names. `NotFoundError` when there is none."""
    found = store.resolve(reference)
    if found is None:
        raise NotFoundError(
            f"{store.location} has no {reference}", remedy=f"see: registry ls {store.location}"
        )
    content = parse_content(store.fetch_manifest(found.digest), found.media_type)
    profile = None
    config = content.config
    if config is not None and config.media_type == MEDIA_TYPE_PROFILE:
        profile = profile_from_canonical(read_small(store, config))
    attached = (*_attached(store, found.digest, set()), *_tagged(store, found.digest))
    return Description(store.location, content, profile, attached)


def kind_of(referrer: Descriptor) -> str:
    """The type of an attestation in words, or as it is; of a rebuild also what it found."""
    found = referrer.artifact_type or referrer.media_type
    verdict = referrer.annotations.get(ANNOTATION_VERDICT)
    if found == MEDIA_TYPE_VERDICT and verdict:
        return f"{_KINDS[found]}: {printable(verdict)}"
    return _KINDS.get(found, found)


def _attached(store: Store, digest: str, seen: set[str]) -> tuple[Attestation, ...]:
    found = []
    for item in store.referrers(digest):
        if item.digest in seen:
            continue
        seen.add(item.digest)
        try:
            content = parse_content(store.fetch_manifest(item.digest), item.media_type)
            if content.subject is None or content.subject.digest != digest:
                raise VerificationError("it is about something else")
        except (NotFoundError, VerificationError) as error:
            found.append(Attestation(item, problem=_reason(error)))
            continue
        found.append(Attestation(item, content.layers, _attached(store, item.digest, seen)))
    return tuple(found)


def _tagged(store: Store, digest: str) -> Iterator[Attestation]:
    """What cosign attached under tags of its own."""
    for tag in cosign_tags(digest):
        found = store.resolve(tag)
        if found is not None:
            content = parse_content(store.fetch_manifest(found.digest), found.media_type)
            yield Attestation(found, content.layers, tag=tag)


def _reason(error: KvregError) -> str:
    return "is missing" if isinstance(error, NotFoundError) else error.what


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"  {title}", *(f"    {line}" for line in lines)] if lines else []


def _profile(profile: Profile) -> list[str]:
    build = profile.build
    lines = [
        f"  profile   {profile.name} {profile.digest}",
        f"  summary   {printable(profile.summary)}",
        f"  runtime   {profile.runtime.package} {profile.runtime.version}",
        f"  build     {build.recipe}, compute capability {', '.join(build.compute_capabilities)}"
        f"{' with PTX' if build.ptx else ''}",
    ]
    if profile.runtime.upstream_tag:
        commit = profile.runtime.upstream_commit
        lines.append(f"  upstream  {profile.runtime.upstream_tag} {commit}".rstrip())
    return lines


def _host(profile: Profile) -> list[str]:
    rows: list[Sequence[str]] = [("fact", "require", "validated")]
    rows += [(key, fact.require, fact.validated) for key, fact in profile.host.facts()]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return [f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}" for row in rows]


def _file(item: Descriptor) -> str:
    title = printable(item.title or item.media_type)
    role = f" ({printable(item.role)})" if item.role else ""
    return f"{title}{role}  {human_bytes(item.size)}  {item.digest}"


def _pairs(annotations: Mapping[str, str]) -> list[str]:
    return [f"{printable(key)} = {printable(value)}" for key, value in sorted(annotations.items())]


def _attestations(items: Iterable[Attestation], indent: str = "") -> Iterator[str]:
    for item in items:
        problem = f"  {printable(item.problem)}" if item.problem else ""
        yield f"{indent}{item.kind}  {item.descriptor.digest}{problem}"
        yield from (f"{indent}  {_file(file)}" for file in item.files)
        yield from _attestations(item.attestations, indent + "  ")
