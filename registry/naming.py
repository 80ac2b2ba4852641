"""Giving an artifact a name, by the rules that names have here."""

import re

from kvreg.errors import ContractError, NotFoundError, UsageError
from kvreg.model.oci import MEDIA_TYPE_PROFILE, Descriptor
from kvreg.model.tag import digest_tag, is_fixed_tag
from registry.content import parse_content
from registry.referrers import attached_to, is_fallback_tag
from registry.store import Store, check_tag

_DIGEST_TAG = re.compile(r"p-[0-9a-f]{32}")


def name(store: Store, target: str, tag: str) -> Descriptor:
    """Let `tag` name what the tag or digest `target` names; the manifest.

    A dated tag is set once and never moved, and a profile's digest tag only ever names an artifact
    of that profile: `ContractError`. `UsageError` for the tags that attestations use,
    `NotFoundError` when there is no `target`.
    """
    check_tag(tag)
    if is_fallback_tag(tag) or attached_to(tag) is not None:
        raise UsageError("tags of this form hold attestations and lists of them", found=tag)
    found = store.resolve(target)
    if found is None:
        raise NotFoundError(
            f"{store.location} has no {target}", remedy=f"see: registry ls {store.location}"
        )
    if _DIGEST_TAG.fullmatch(tag):
        _check_profile(store, found, tag)
    store.tag(found, tag, move=not is_fixed_tag(tag))
    return found


def _check_profile(store: Store, found: Descriptor, tag: str) -> None:
    config = parse_content(store.fetch_manifest(found.digest), found.media_type).config
    is_profile = config is not None and config.media_type == MEDIA_TYPE_PROFILE
    wanted = digest_tag(config.digest) if config is not None and is_profile else None
    if wanted != tag:
        raise ContractError(
            f"{tag} is the tag by which a client finds the artifact of a certain profile",
            expected=wanted or "a runtime",
            found=found.digest,
            remedy="choose another tag",
        )
