"""Finding what nothing reaches in a repository of a registry, as far as its API lets one see.

The distribution API lists tags and nothing else, so a manifest without a tag can be found only
where the referrers tag schema (``sha256-<hex>``) still names it: an artifact whose tags were moved
or deleted, its attestations, and lists that name what is gone. A registry with the referrers API
has no such tags and tidies up by itself. Bytes are freed by the registry's own collection.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kvreg.model.oci import Descriptor
from registry.content import MANIFEST_TYPES, Content, parse_content
from registry.reachability import Node, reachable
from registry.referrers import attached_to, fallback_tag, parse_referrers, subject_of
from registry.remote import Remote


@dataclass(frozen=True)
class Unreferenced:
    """Manifests that nothing reaches, the outermost attestation first; fallback tags whose subject
    is not kept; and by subject the entries of other lists that name what is not there."""

    location: str
    manifests: tuple[Descriptor, ...] = ()
    lists: tuple[str, ...] = ()
    dangling: tuple[tuple[str, str], ...] = ()
    deleted: bool = False

    def common(self, other: "Unreferenced") -> "Unreferenced":
        """What both looks found."""
        digests = {item.digest for item in other.manifests}
        return Unreferenced(
            self.location,
            tuple(item for item in self.manifests if item.digest in digests),
            tuple(tag for tag in self.lists if tag in other.lists),
            tuple(item for item in self.dangling if item in other.dangling),
        )

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.manifests or self.lists or self.dangling)

    def to_dict(self) -> dict[str, object]:
        """As JSON-ready data."""
        return {
            "location": self.location,
            "deleted": self.deleted,
            "manifests": [item.to_dict() for item in self.manifests],
            "lists": list(self.lists),
            "dangling": [{"subject": one, "digest": other} for one, other in self.dangling],
        }


def find_unreferenced(remote: Remote) -> Unreferenced:
    """Read all tags and lists of referrers; nothing is changed. What cannot be read is an error,
    because nobody could say what it reaches."""
    return _Survey(remote).unreferenced()


def delete_unreferenced(remote: Remote, wait: float) -> Unreferenced:
    """Delete what was unreferenced at two looks, `wait` seconds apart.

    A registry knows neither locks nor ages. A copy that is under way has untagged manifests for a
    moment, until it sets its tags: the second look, just before the deletion, is for those.
    Killed half-way, it leaves the lists that lead the next run to what is left.
    """
    found = find_unreferenced(remote)
    if not found.empty:
        remote.pause(wait)
        found = found.common(find_unreferenced(remote))
    for item in found.manifests:
        remote.delete_manifest(item.digest)
    for subject in dict.fromkeys(subject for subject, _ in found.dangling):
        gone = {digest for where, digest in found.dangling if where == subject}
        remote.unlist_referrers(subject, gone)
    for tag in found.lists:
        remote.delete_list(subject_of(tag))
    return Unreferenced(found.location, found.manifests, found.lists, found.dangling, deleted=True)


@dataclass
class _Survey:
    remote: Remote
    contents: dict[str, Content | None] = field(default_factory=dict)
    listed: dict[str, tuple[Descriptor, ...]] = field(default_factory=dict)
    """The entries of the list of each subject."""
    list_digests: dict[str, str] = field(default_factory=dict)

    def unreferenced(self) -> Unreferenced:
        roots, about = set(), {}
        for tag in self.remote.list_tags():
            found = self.remote.resolve(tag)
            if found is None:
                continue
            self._read(found.digest)
            subject = attached_to(tag)
            if subject is not None:
                self._read(subject)
            if subject is not None and self.contents[subject] is not None:
                # A signature stays with what was signed.
                about[found.digest] = subject
            else:
                roots.add(found.digest)
        for tag in self.remote.fallback_tags():
            subject = subject_of(tag)
            found = self.remote.resolve(tag)
            if found is None:
                continue
            raw = self.remote.fetch_manifest(found.digest)
            self.listed[subject] = parse_referrers(raw, subject)
            self.list_digests[subject] = found.digest
            self._read(subject)
            for entry in self.listed[subject]:
                self._read(entry.digest)
        nodes = [
            Node.of(item, about=about.get(digest)) for digest, item in self.contents.items() if item
        ]
        kept = reachable(roots, nodes)
        dead = {
            digest: item for digest, item in self.contents.items() if item and digest not in kept
        }
        # Deleting a list by its digest takes every tag of that digest.
        in_use = kept | {self.list_digests[subject] for subject in self.listed if subject in kept}
        return Unreferenced(
            self.remote.location,
            tuple(item.descriptor for item in _inside_out(dead, about)),
            tuple(
                fallback_tag(subject)
                for subject, digest in self.list_digests.items()
                if subject not in kept and digest not in in_use
            ),
            tuple(
                (subject, entry.digest)
                for subject, entries in self.listed.items()
                if subject in kept
                for entry in entries
                if self.contents[entry.digest] is None
            ),
        )

    def _read(self, digest: str) -> None:
        """Note a manifest and what it leads to; None for one that is not there."""
        waiting = [digest]
        while waiting:
            digest = waiting.pop()
            if digest in self.contents:
                continue
            found = self.remote.resolve(digest)
            if found is None:
                self.contents[digest] = None
                continue
            content = parse_content(self.remote.fetch_manifest(digest), found.media_type)
            self.contents[digest] = content
            waiting += [i.digest for i in content.manifests if i.media_type in MANIFEST_TYPES]
            waiting += [content.subject.digest] if content.subject else []


def _inside_out(dead: Mapping[str, Content], about: Mapping[str, str]) -> Iterator[Content]:
    """Every manifest after its attestations and its parts: what is left of a deletion that was
    killed can be found again from what leads to it."""
    seen: set[str] = set()

    def visit(digest: str) -> Iterator[Content]:
        if digest in seen or digest not in dead:
            return
        seen.add(digest)
        content = dead[digest]
        attached = [key for key, item in dead.items() if _subject(item, about) == digest]
        for other in (*attached, *(item.digest for item in content.manifests)):
            yield from visit(other)
        yield content

    for digest in dead:
        yield from visit(digest)


def _subject(content: Content, about: Mapping[str, str]) -> str | None:
    return content.subject.digest if content.subject else about.get(content.descriptor.digest)
