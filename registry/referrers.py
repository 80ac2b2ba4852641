"""Lists of referrers: the order and filter that all stores share, and the tag schema.

A registry without the referrers API keeps the list of a subject as an image index under the tag
``sha256-<hex of the subject>``; whoever attaches to the subject maintains it.
"""

from collections.abc import Container, Iterable

from kvreg.model.digest import is_digest, parse_digest
from kvreg.model.oci import MEDIA_TYPE_INDEX, Descriptor, Index
from registry.content import parse_content

_COSIGN_KINDS = ("sig", "att", "sbom")


def fallback_tag(digest: str) -> str:
    """The tag under which the referrers of `digest` are listed.

    >>> fallback_tag("sha256:" + "0" * 64) == "sha256-" + "0" * 64
    True
    """
    return f"sha256-{parse_digest(digest)}"


def is_fallback_tag(tag: str) -> bool:
    """Whether `tag` is one that the referrers tag schema makes.

    >>> is_fallback_tag("sha256-" + "0" * 64), is_fallback_tag("t4-probe")
    (True, False)
    """
    return is_digest(tag.replace("-", ":", 1))


def cosign_tags(digest: str) -> tuple[str, ...]:
    """The tags under which cosign attaches things to `digest`."""
    return tuple(f"{fallback_tag(digest)}.{kind}" for kind in _COSIGN_KINDS)


def attached_to(tag: str) -> str | None:
    """The digest that a tag of cosign's is about, such as that of `signature_tag`; None for others.

    >>> attached_to("sha256-" + "0" * 64 + ".sig") == "sha256:" + "0" * 64
    True
    >>> attached_to("t4-probe") is None
    True
    """
    stem, dot, kind = tag.partition(".")
    return subject_of(stem) if dot and kind in _COSIGN_KINDS and is_fallback_tag(stem) else None


def filtered(
    referrers: Iterable[Descriptor], artifact_type: str | None = None
) -> tuple[Descriptor, ...]:
    """Referrers of one type or of all, each digest once, in an order that every store has."""
    kept = {
        item.digest: item
        for item in referrers
        if artifact_type is None or item.artifact_type == artifact_type
    }
    return tuple(sorted(kept.values(), key=lambda item: (item.artifact_type or "", item.digest)))


def parse_referrers(raw: bytes, subject: str) -> tuple[Descriptor, ...]:
    """The entries of an untrusted list of referrers; one that names the subject is ignored.

    `VerificationError` when the bytes are no image index.
    """
    content = parse_content(raw, MEDIA_TYPE_INDEX)
    return tuple(item for item in content.manifests if item.digest != subject)


def with_referrer(listed: tuple[Descriptor, ...], referrer: Descriptor) -> bytes | None:
    """The index that lists `referrer` besides `listed`; None when it is listed already."""
    if any(item.digest == referrer.digest for item in listed):
        return None
    return Index((*listed, referrer)).to_bytes()


def without_referrers(listed: tuple[Descriptor, ...], gone: Container[str]) -> bytes | None:
    """The index that lists `listed` without those in `gone`; None when it has none of them."""
    kept = tuple(item for item in listed if item.digest not in gone)
    return None if len(kept) == len(listed) else Index(kept).to_bytes()


def subject_of(tag: str) -> str:
    """The digest whose referrers are listed under a fallback tag."""
    return tag.replace("-", ":", 1)
