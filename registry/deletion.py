"""Deleting on purpose: a tag, or an artifact with everything that is attached to it."""

from dataclasses import dataclass

from kvreg.errors import ContractError, NotFoundError
from kvreg.model.digest import is_digest
from registry.content import parse_content
from registry.inventory import tags_by_digest
from registry.referrers import attached_to, cosign_tags
from registry.store import Store


@dataclass(frozen=True)
class Deleted:
    """What was deleted, or would be: a tag, or manifests with the attestations first."""

    location: str
    tag: str | None
    manifests: tuple[str, ...]
    done: bool

    def to_dict(self) -> dict[str, object]:
        """As JSON-ready data."""
        return {
            "location": self.location,
            "tag": self.tag,
            "manifests": list(self.manifests),
            "deleted": self.done,
        }


def delete(store: Store, target: str, *, dry_run: bool = False) -> Deleted:
    """Delete a tag alone, or the manifest of a digest with its attestations.

    `NotFoundError` when there is no such thing; `ContractError` when a digest still has tags or is
    part of a tagged index, because whoever uses those would find nothing.
    """
    if not is_digest(target):
        if not dry_run:
            store.untag(target)
        elif store.resolve(target) is None:
            raise NotFoundError(f"{store.location} has no tag {target}")
        return Deleted(store.location, target, (), not dry_run)
    order = (*_attached(store, target, {target}), target)
    _refuse_used(store, order)
    if not dry_run:
        for digest in order:
            store.delete(digest)
    return Deleted(store.location, None, order, not dry_run)


def _refuse_used(store: Store, digests: tuple[str, ...]) -> None:
    tagged = tags_by_digest(store)
    for digest in digests:
        # The tag of a signature goes with what was signed.
        own = [tag for tag in tagged.get(digest, ()) if attached_to(tag) not in digests]
        if own:
            raise ContractError(
                f"{digest} of {store.location} still has tags",
                expected="none",
                found=", ".join(own),
                remedy="delete the tags first, and then the digest",
            )
    for parent, tags in tagged.items():
        content = parse_content(store.fetch_manifest(parent))
        if parts := {item.digest for item in content.manifests}.intersection(digests):
            raise ContractError(
                f"{min(parts)} is part of another manifest of {store.location}",
                found=f"{parent} ({', '.join(tags)})",
                remedy="delete that one first",
            )


def _attached(store: Store, digest: str, seen: set[str]) -> tuple[str, ...]:
    """What refers to a manifest, the outermost first, so that none is ever left without subject."""
    order: list[str] = []
    signatures = (store.resolve(tag) for tag in cosign_tags(digest))
    for item in (*store.referrers(digest), *(found for found in signatures if found)):
        if item.digest not in seen:
            seen.add(item.digest)
            order += [*_attached(store, item.digest, seen), item.digest]
    return tuple(order)
