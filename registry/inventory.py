"""What a store holds, artifact by artifact."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kvreg.console import human_bytes
from kvreg.errors import VerificationError
from kvreg.model.oci import MEDIA_TYPE_PROFILE, MEDIA_TYPE_WHEEL
from registry.content import MANIFEST_TYPES, Content, parse_content
from registry.layout import Layout
from registry.publish import ANNOTATION_PROFILE, ANNOTATION_VERSION
from registry.referrers import attached_to
from registry.store import Store
from registry.text import printable


@dataclass(frozen=True)
class Item:
    """An artifact with the tags that name it and how many attestations are attached to it."""

    content: Content
    tags: tuple[str, ...]
    attestations: int

    @property
    def digest(self) -> str:
        """The manifest's digest."""
        return self.content.descriptor.digest

    @property
    def total_bytes(self) -> int:
        """Size of the artifact's own blobs."""
        return sum(blob.size for blob in self.content.blobs)

    @property
    def is_runtime(self) -> bool:
        """Whether it is the runtime of a profile."""
        config = self.content.config
        return config is not None and config.media_type == MEDIA_TYPE_PROFILE

    @property
    def profile_name(self) -> str:
        """The name of a runtime's profile, as its annotations have it; "" when they lack it."""
        return self.content.annotations.get(ANNOTATION_PROFILE, "")

    @property
    def what(self) -> str:
        """The artifact in a few words."""
        found = self.content
        if not self.is_runtime:
            return printable(found.descriptor.artifact_type or found.descriptor.media_type)
        wheels = (layer for layer in found.layers if layer.media_type == MEDIA_TYPE_WHEEL)
        titles = [layer.title or "" for layer in wheels]
        name = self.profile_name or "a profile"
        version = found.annotations.get(ANNOTATION_VERSION, "")
        package = titles[0].partition("-")[0].replace("_", "-") if titles else ""
        return printable(f"{name}: {package} {version}".rstrip())

    def to_dict(self) -> dict[str, object]:
        """As JSON-ready data."""
        return {
            **self.content.descriptor.to_dict(),
            "tags": list(self.tags),
            "annotations": dict(self.content.annotations),
            "totalBytes": self.total_bytes,
            "attestations": self.attestations,
        }


def inventory(store: Store) -> tuple[Item, ...]:
    """The artifacts of a store: those with a tag first, by tag, then what a layout has besides.

    A registry does not tell of manifests without a tag. Attestations are counted, not listed.
    """
    tags = tags_by_digest(store)
    contents = {digest: _content(store, digest) for digest in tags}
    if isinstance(store, Layout):
        contents |= {content.descriptor.digest: content for content in layout_contents(store)}
    subjects = _subjects(contents, tags)
    if isinstance(store, Layout):
        attached = Counter(subjects.values())
    else:
        attached = Counter({digest: len(store.referrers(digest)) for digest in tags})
        attached += Counter(subjects[digest] for digest in tags if digest in subjects)
    return tuple(
        Item(content, tags.get(digest, ()), attached[digest])
        for digest, content in contents.items()
        if digest not in subjects or _has_own_name(tags.get(digest, ()))
    )


def tags_by_digest(store: Store) -> dict[str, tuple[str, ...]]:
    """The tags of every manifest that has some."""
    found: dict[str, tuple[str, ...]] = {}
    for tag in store.list_tags():
        descriptor = store.resolve(tag)
        # Another writer may have taken it away since the tags were listed.
        if descriptor is not None:
            found[descriptor.digest] = (*found.get(descriptor.digest, ()), tag)
    return found


def _subjects(
    contents: Mapping[str, Content], tagged: Mapping[str, tuple[str, ...]]
) -> dict[str, str]:
    """By attestation what it is about, as its manifest says or a tag of cosign's."""
    found = {}
    for digest, content in contents.items():
        if content.subject is not None:
            found[digest] = content.subject.digest
        for tag in tagged.get(digest, ()):
            subject = attached_to(tag)
            if subject is not None and subject in contents:
                found[digest] = subject
    return found


def _has_own_name(tags: Iterable[str]) -> bool:
    return any(attached_to(tag) is None for tag in tags)


def layout_contents(layout: Layout) -> Iterator[Content]:
    """Every manifest that the index of a layout lists, of the kinds that we can read."""
    for entry in layout.index().descriptors():
        if entry.media_type in MANIFEST_TYPES:
            yield parse_content(layout.fetch_manifest(entry.digest), entry.media_type)


def listing(items: Iterable[Item]) -> str:
    """The artifacts as lines for a terminal."""
    blocks = []
    for item in items:
        tags = ", ".join(item.tags) or "(no tag)"
        count = item.attestations
        attestations = f"{count} attestation{'' if count == 1 else 's'}"
        blocks.append(
            f"{item.digest}  {item.what}\n"
            f"  {tags}\n"
            f"  {human_bytes(item.total_bytes)}, {attestations}"
        )
    return "\n".join(blocks) or "nothing"


def _content(store: Store, digest: str) -> Content:
    try:
        return parse_content(store.fetch_manifest(digest))
    except VerificationError as error:
        raise VerificationError(
            f"{store.location} has a damaged manifest", expected=digest, found=error.what
        ) from error
