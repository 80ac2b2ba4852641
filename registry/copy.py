"""Copying an artifact with its referrers from any store to any other, byte for byte."""

from dataclasses import dataclass, field

from kvreg.errors import NotFoundError
from kvreg.model.digest import is_digest
from kvreg.model.oci import MEDIA_TYPE_RUNTIME, Descriptor
from kvreg.model.signature import signature_tag
from kvreg.model.tag import digest_tag, is_fixed_tag
from registry.content import Content, check_titles, parse_content
from registry.parallel import in_parallel
from registry.signatures import push_simple, simple_layers
from registry.store import Store
from registry.stream import Progress


@dataclass(frozen=True)
class Copied:
    """What a copy did: manifests written, referrers among them, blobs and bytes that moved."""

    descriptor: Descriptor
    tags: tuple[str, ...]
    manifests: int
    referrers: int
    blobs_copied: int
    blobs_present: int
    blob_bytes: int

    def to_dict(self) -> dict[str, object]:
        """As JSON-ready data."""
        return {
            **self.descriptor.to_dict(),
            "tags": list(self.tags),
            "manifests": self.manifests,
            "referrers": self.referrers,
            "blobsCopied": self.blobs_copied,
            "blobsPresent": self.blobs_present,
            "blobBytes": self.blob_bytes,
        }


def copy(
    source: Store,
    destination: Store,
    reference: str,
    with_referrers: bool = True,
    *,
    tag: str | None = None,
    progress: Progress | None = None,
) -> Copied:
    """Copy what the tag or digest `reference` names in `source`.

    The copy gets the tag `tag`, by default `reference` when that is a tag; a runtime also gets
    the tag of its profile digest, by which clients look for it. Tags come last, so a killed copy
    leaves nothing that is named but not whole; what it moved is not moved again.

    `NotFoundError` when `source` has no such manifest, `ContractError` when a tag that is never
    moved names something else in `destination`.
    """
    found = source.resolve(reference)
    if found is None:
        raise NotFoundError(f"{source.location} has no {reference}")
    tags = [] if is_digest(reference) and tag is None else [tag or reference]
    destination.prepare()
    work = _Copy(source, destination, progress)
    root = work.manifest(found.digest)
    if with_referrers:
        work.referrers(found.digest)
        work.signatures(found.digest)
    if root.descriptor.artifact_type == MEDIA_TYPE_RUNTIME and root.config is not None:
        tags.append(digest_tag(root.config.digest))
    tags = list(dict.fromkeys(tags))
    for name in reversed(tags):
        destination.tag(found, name, move=not is_fixed_tag(name))
    return Copied(
        found,
        tuple(tags),
        manifests=len(work.done),
        referrers=work.attached,
        blobs_copied=work.blobs_copied,
        blobs_present=work.blobs_present,
        blob_bytes=work.blob_bytes,
    )


@dataclass
class _Copy:
    source: Store
    destination: Store
    progress: Progress | None
    done: set[str] = field(default_factory=set)
    seen_blobs: set[str] = field(default_factory=set)
    attached: int = 0
    blobs_copied: int = 0
    blobs_present: int = 0
    blob_bytes: int = 0

    def manifest(self, digest: str) -> Content:
        """Copy a manifest after everything below it."""
        raw = self.source.fetch_manifest(digest)
        content = parse_content(raw)
        check_titles(content)
        for child in content.manifests:
            if child.digest not in self.done:
                self.manifest(child.digest)
        new = [blob for blob in content.blobs if blob.digest not in self.seen_blobs]
        self.seen_blobs.update(blob.digest for blob in new)
        stores = (self.source, self.destination)
        moved = in_parallel(_moved, new, *stores, progress=self.progress)
        for blob, was_moved in zip(new, moved, strict=True):
            self.blobs_copied += was_moved
            self.blobs_present += not was_moved
            self.blob_bytes += blob.size if was_moved else 0
        self.destination.push_manifest(raw, content.descriptor.media_type)
        self.done.add(digest)
        return content

    def referrers(self, digest: str) -> None:
        """Copy what refers to a manifest, and what refers to that."""
        for referrer in self.source.referrers(digest):
            if referrer.digest not in self.done:
                self.manifest(referrer.digest)
                self.attached += 1
                self.referrers(referrer.digest)

    def signatures(self, digest: str) -> None:
        """Copy what cosign keeps under a tag of its own, beside what the destination has there."""
        tag = signature_tag(digest)
        found = self.source.resolve(tag)
        if found is None:
            return
        self.manifest(found.digest)
        self.attached += 1
        present = simple_layers(self.destination, tag)
        layers = simple_layers(self.source, tag)
        if set(present) <= set(layers):
            self.destination.tag(found, tag)
        elif not set(layers) <= set(present):
            push_simple(self.destination, tag, (*present, *layers))


def _moved(blob: Descriptor, progress: Progress | None, source: Store, destination: Store) -> bool:
    """Bring a blob to the destination; whether its bytes had to move."""
    if (path := source.blob_path(blob)) is not None:
        return destination.push_blob(path, blob, progress)
    if destination.mount(blob, source):
        return False
    return destination.push_stream(source.read_blob(blob, progress), blob)
