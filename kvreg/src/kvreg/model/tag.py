"""The forms of the tags under which a runtime is published."""

import re

_FIXED = re.compile(r".+-v.+-\d{8}")


def digest_tag(profile_digest: str) -> str:
    """``p-`` and the first 32 hex digits of a profile digest."""
    return "p-" + profile_digest.removeprefix("sha256:")[:32]


def is_fixed_tag(tag: str) -> bool:
    """Whether `tag` has the form of those that are never moved.

    >>> is_fixed_tag("t4x2-cu128-v0.18.1-20261130"), is_fixed_tag("t4x2-cu128")
    (True, False)
    """
    return _FIXED.fullmatch(tag) is not None
