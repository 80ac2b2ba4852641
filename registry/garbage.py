"""Collecting the garbage of a layout: what no tag leads to any more.

A layout is changed by others while this runs. What they are about to use is left alone because it
is young (`Layout.push_blob` makes a blob young again that it finds), everything is decided and done
under the layout's lock, and the index forgets a manifest before its bytes go. So a collection that
is killed leaves a whole layout with some garbage in it.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kvreg.errors import NotFoundError, VerificationError
from kvreg.model.oci import MAX_MANIFEST_BYTES, Descriptor
from registry.content import MANIFEST_TYPES, Content, parse_content
from registry.files import remove_stale
from registry.index import LayoutIndex
from registry.layout import Layout
from registry.reachability import Node, reachable
from registry.referrers import attached_to

DEFAULT_AGE = 24 * 3600.0
"""Seconds for which what nothing names yet is taken for the work of a writer."""


@dataclass(frozen=True)
class Blob:
    """A blob of a layout; `size` in bytes."""

    digest: str
    size: int


@dataclass(frozen=True)
class Garbage:
    """What nothing reaches: manifests that the index lists, and blobs, manifests' own included.

    `young` counts the blobs that would be garbage if all were older.
    """

    location: str
    manifests: tuple[Descriptor, ...]
    blobs: tuple[Blob, ...]
    young: int
    deleted: bool = False

    @property
    def bytes(self) -> int:
        """What the blobs take on the disk."""
        return sum(blob.size for blob in self.blobs)

    def to_dict(self) -> dict[str, object]:
        """As JSON-ready data."""
        return {
            "location": self.location,
            "deleted": self.deleted,
            "manifests": [item.to_dict() for item in self.manifests],
            "blobs": [{"digest": blob.digest, "size": blob.size} for blob in self.blobs],
            "bytes": self.bytes,
            "young": self.young,
        }


def find_garbage(layout: Layout, older_than: float = DEFAULT_AGE) -> Garbage:
    """What `collect_garbage` would delete now; nothing is changed.

    `older_than` is in seconds. `VerificationError` when a manifest is damaged, so that nobody can
    say what it needs.
    """
    return _Survey(layout, time.time() - older_than).garbage()


def collect_garbage(layout: Layout, older_than: float = DEFAULT_AGE) -> Garbage:
    """Delete what nothing reaches and what is older than `older_than` seconds."""
    with layout.exclusive():
        found = find_garbage(layout, older_than)
        gone = {item.digest for item in found.manifests}
        layout.replace_index(layout.index().without(gone))
        sizes = {blob.digest: blob.size for blob in found.blobs}
        # Manifests first, so that none is ever left there without its blobs.
        for digest, path in sorted(layout.blob_files(), key=lambda item: item[0] not in gone):
            if digest in sizes:
                path.unlink(missing_ok=True)
        remove_stale(layout.path)
    return Garbage(found.location, found.manifests, found.blobs, found.young, deleted=True)


class _Survey:
    """All that the index of a layout leads to, and what is there besides."""

    def __init__(self, layout: Layout, before: float) -> None:
        self._layout = layout
        self._index: LayoutIndex = layout.index()
        self._files = dict(layout.blob_files())
        self._before = before
        self._nodes: dict[str, Node] = {}
        self._others: set[str] = set()
        self._listed = {entry.digest for entry in self._index.descriptors()}
        # By manifest what it is about, for those that have it in their tag.
        self._about = {
            digest: subject
            for name, digest in self._index.by_name()
            if (subject := attached_to(name)) in self._files and subject is not None
        }
        for entry in self._index.descriptors():
            if entry.media_type in MANIFEST_TYPES:
                self._read(entry, required=True)
            else:
                self._others.add(entry.digest)
                self._guess([entry.digest])

    def garbage(self) -> Garbage:
        entries = [entry for entry in self._index.descriptors() if entry.digest not in self._others]
        # An entry that is no descriptor of ours to read, or of an unknown kind, is kept.
        named = self._index.named(self._counts) | self._others
        unnamed = self._files.keys() - reachable(named, self._nodes.values())
        young = {entry.digest for entry in entries if self._is_young(entry.digest)}
        kept = reachable(named | young, self._nodes.values())
        dead = sorted(
            digest for digest in unnamed if digest not in kept and not self._is_young(digest)
        )
        blobs = tuple(Blob(digest, self._files[digest].stat().st_size) for digest in dead)
        manifests = tuple(entry for entry in entries if entry.digest not in kept)
        return Garbage(self._layout.location, manifests, blobs, len(unnamed) - len(dead))

    def _counts(self, name: str) -> bool:
        """Whether what is called so stays. A signature stays with what was signed, or by itself
        when that is kept in another place."""
        return attached_to(name) not in self._files

    def _is_young(self, digest: str) -> bool:
        path = self._files.get(digest)
        return path is not None and path.stat().st_mtime > self._before

    def _read(self, descriptor: Descriptor, required: bool) -> None:
        """Note a manifest and those that it leads to."""
        waiting = [(descriptor, required)]
        while waiting:
            item, needed = waiting.pop()
            if item.digest in self._nodes:
                continue
            if item.media_type not in MANIFEST_TYPES:
                self._guess([item.digest])
                continue
            content = self._content(item, needed)
            if content is not None:
                listed = item.digest in self._listed
                self._nodes[item.digest] = Node.of(
                    content, listed=listed, about=self._about.get(item.digest)
                )
                # An index may have been copied without all of its manifests, an attestation
                # without its subject.
                around = (*content.manifests, *((content.subject,) if content.subject else ()))
                waiting += [(each, False) for each in around]

    def _content(self, item: Descriptor, needed: bool) -> Content | None:
        if not needed and item.digest not in self._files:
            return None
        try:
            return parse_content(self._layout.fetch_manifest(item.digest), item.media_type)
        except (NotFoundError, VerificationError) as error:
            raise VerificationError(
                f"{self._layout.location} has a damaged manifest; what it needs is not known",
                expected=item.digest,
                found=error.what,
                remedy="copy the artifact there again, or delete it:"
                f" registry delete {self._layout.location}@{item.digest}",
            ) from error

    def _guess(self, digests: Iterable[str]) -> None:
        """Note what we cannot read as needing everything that it mentions."""
        waiting = list(digests)
        while waiting:
            digest = waiting.pop()
            path = self._files.get(digest)
            if path is None or digest in self._nodes or not _is_small(path):
                continue
            node = Node.opaque(digest, path.read_bytes())
            self._nodes[digest] = node
            waiting += node.below


def _is_small(path: Path) -> bool:
    return path.stat().st_size <= MAX_MANIFEST_BYTES
