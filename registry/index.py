"""The ``index.json`` of a layout as data: read, changed and written without losing a thing.

Entries are kept as the JSON objects that they were: another tool's annotations, platforms and
unknown kinds of entry survive every change that is made here.
"""

import json
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvreg.errors import VerificationError
from kvreg.model.oci import ANNOTATION_REF_NAME, MEDIA_TYPE_INDEX, Descriptor, parse_json

_CONTAINERD_NAME = "io.containerd.image.name"


@dataclass(frozen=True)
class LayoutIndex:
    """The entries of an ``index.json`` and whatever else its top level holds."""

    entries: tuple[Mapping[str, Any], ...] = ()
    rest: Mapping[str, Any] | None = None

    @classmethod
    def parse(cls, raw: bytes) -> "LayoutIndex":
        """Read untrusted bytes; `VerificationError` when they are no image index."""
        table = parse_json(raw, "index.json")
        if not isinstance(table, dict):
            raise _malformed("a JSON object", table)
        if table.get("schemaVersion") != 2:
            raise _malformed("schemaVersion 2", table.get("schemaVersion"))
        entries = table.get("manifests")
        if not isinstance(entries, list) or not all(isinstance(item, dict) for item in entries):
            raise _malformed("an array of objects as manifests", entries)
        rest = {key: value for key, value in table.items() if key != "manifests"}
        return cls(tuple(entries), rest)

    def to_bytes(self) -> bytes:
        """The index as JSON that a person can read."""
        rest = self.rest or {"schemaVersion": 2, "mediaType": MEDIA_TYPE_INDEX}
        table = {**rest, "manifests": list(self.entries)}
        return json.dumps(table, indent=2, ensure_ascii=False).encode() + b"\n"

    def tags(self) -> tuple[str, ...]:
        """Every name that an entry has, sorted."""
        return tuple(sorted({name for entry in self.entries if (name := _name(entry))}))

    def tagged(self, tag: str) -> Descriptor | None:
        """The entry called `tag`; `VerificationError` when two of them disagree."""
        found = [entry for entry in self.entries if _name(entry) == tag]
        digests = sorted({str(entry.get("digest")) for entry in found})
        if len(digests) > 1:
            raise VerificationError(
                f"index.json has the tag {tag} more than once",
                expected="one digest",
                found=", ".join(digests),
                remedy="tag the right one again",
            )
        return Descriptor.from_dict(found[0]) if found else None

    def with_digest(self, digest: str) -> Descriptor | None:
        """An entry of `digest`, tagged or not."""
        for entry in self.entries:
            if entry.get("digest") == digest:
                return Descriptor.from_dict(entry)
        return None

    def descriptors(self) -> Iterator[Descriptor]:
        """One descriptor a digest; entries that are none of ours to judge are passed over."""
        seen: set[str] = set()
        for entry in self.entries:
            try:
                descriptor = Descriptor.from_dict(entry)
            except VerificationError:
                continue
            if descriptor.digest not in seen:
                seen.add(descriptor.digest)
                yield descriptor

    def named(self, counts: Callable[[str], bool]) -> frozenset[str]:
        """The digests of all entries with a name that counts, or one of another tool."""
        return frozenset(
            str(item.get("digest"))
            for item in self.entries
            if ((name := _name(item)) and counts(name)) or _foreign_name(item)
        )

    def by_name(self) -> Iterator[tuple[str, str]]:
        """Every name with the digest that it names."""
        for item in self.entries:
            if name := _name(item):
                yield name, str(item.get("digest"))

    def add(self, descriptor: Descriptor) -> "LayoutIndex":
        """With an entry of `descriptor`, unless there is one."""
        if any(entry.get("digest") == descriptor.digest for entry in self.entries):
            return self
        return replace(self, entries=(*self.entries, _entry(descriptor, None)))

    def without(self, digests: Container[str]) -> "LayoutIndex":
        """Without the entries of `digests`, whatever they are called."""
        return replace(
            self, entries=tuple(item for item in self.entries if item.get("digest") not in digests)
        )

    def untag(self, tag: str) -> "LayoutIndex":
        """With no entry called `tag`; what it named stays."""
        kept = [_without_name(item) if _name(item) == tag else item for item in self.entries]
        return replace(self, entries=_without_repetition(kept))

    def tag(self, descriptor: Descriptor, tag: str) -> "LayoutIndex":
        """With `tag` naming `descriptor` alone.

        What the tag named before stays in the index without a name, so that nothing is lost.
        """
        kept: list[Mapping[str, Any]] = []
        there = False
        for entry in self.entries:
            if _name(entry) != tag:
                kept.append(entry)
            elif entry.get("digest") != descriptor.digest:
                kept.append(_without_name(entry))
            elif not there:
                there = True
                kept.append(entry)
        if not there:
            kept.append(_entry(descriptor, tag))
        return replace(self, entries=_without_repetition(kept))


def _without_repetition(entries: list[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """`entries` without those that say nothing but a digest that another entry has as well."""
    seen = {entry.get("digest") for entry in entries if not _is_bare(entry)}
    kept = []
    for entry in entries:
        if _is_bare(entry):
            if entry["digest"] in seen:
                continue
            seen.add(entry["digest"])
        kept.append(entry)
    return tuple(kept)


def _is_bare(entry: Mapping[str, Any]) -> bool:
    return "digest" in entry and entry.keys() <= {"mediaType", "digest", "size", "artifactType"}


def _entry(descriptor: Descriptor, tag: str | None) -> dict[str, Any]:
    entry = Descriptor(
        descriptor.media_type,
        descriptor.digest,
        descriptor.size,
        {ANNOTATION_REF_NAME: tag} if tag else {},
        descriptor.artifact_type,
    )
    return entry.to_dict()


def _name(entry: Mapping[str, Any]) -> str | None:
    annotations = entry.get("annotations")
    name = annotations.get(ANNOTATION_REF_NAME) if isinstance(annotations, dict) else None
    return name if isinstance(name, str) else None


def _foreign_name(entry: Mapping[str, Any]) -> bool:
    annotations = entry.get("annotations")
    return isinstance(annotations, dict) and _CONTAINERD_NAME in annotations


def _without_name(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    annotations = {
        key: value for key, value in entry["annotations"].items() if key != ANNOTATION_REF_NAME
    }
    bare = {key: value for key, value in entry.items() if key != "annotations"}
    return {**bare, "annotations": annotations} if annotations else bare


def _malformed(expected: str, found: object) -> VerificationError:
    return VerificationError("index.json is malformed", expected=expected, found=repr(found)[:200])
