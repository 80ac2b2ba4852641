"""What must be kept: the graph of manifests and blobs, and what can be reached in it.

Nothing here reads a store; a store's content is given as nodes.

>>> nodes = [Node("image", frozenset({"layer"})), Node("sbom", frozenset({"json"}), "image")]
>>> sorted(reachable({"image"}, nodes))
['image', 'json', 'layer', 'sbom']
>>> sorted(reachable({"sbom"}, nodes))
['image', 'json', 'layer', 'sbom']
>>> reachable({"other"}, nodes)
frozenset({'other'})
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from registry.content import Content

_DIGEST = re.compile(rb"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Node:
    """A manifest as far as keeping goes: the digests below it, and the subject that it is about."""

    digest: str
    below: frozenset[str] = frozenset()
    subject: str | None = None

    @classmethod
    def of(cls, content: Content, *, listed: bool = True, about: str | None = None) -> "Node":
        """The node of a manifest that we can read.

        One that a layout does not list is no attestation there; it needs its subject all the same.
        `about` is the subject of a manifest that has it in its tag, as cosign's signatures do.
        """
        digest = content.descriptor.digest
        below = frozenset(item.digest for item in content.blobs + content.manifests)
        subject = content.subject.digest if content.subject else about
        if subject is not None and not listed:
            return cls(digest, below | {subject})
        return cls(digest, below, subject)

    @classmethod
    def opaque(cls, digest: str, raw: bytes) -> "Node":
        """The node of something that we cannot read: whatever it mentions is below it."""
        mentioned = frozenset(match.decode() for match in _DIGEST.findall(raw))
        return cls(digest, mentioned - {digest})


def reachable(roots: Iterable[str], nodes: Iterable[Node]) -> frozenset[str]:
    """The digests of everything that is to be kept when `roots` are.

    That is what lies below them; what refers to what is kept, because an artifact is kept with its
    attestations; and the subject of what is kept, because an attestation about nothing is worth
    nothing.
    """
    known = {node.digest: node for node in nodes}
    referrers: defaultdict[str, set[str]] = defaultdict(set)
    for node in known.values():
        if node.subject is not None:
            referrers[node.subject].add(node.digest)
    kept: set[str] = set()
    waiting = set(roots)
    while waiting:
        digest = waiting.pop()
        kept.add(digest)
        found = set(referrers[digest])
        if (here := known.get(digest)) is not None:
            found |= here.below
            found |= {here.subject} if here.subject else set()
        waiting |= found - kept
    return frozenset(kept)
