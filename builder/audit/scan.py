"""Searches bytes for build paths and secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from builder.audit.policy import Policy
from builder.fatbin import Buffer

_CHUNK = 4 << 20
_OVERLAP = 8 << 10
"""Longer than anything that is searched for, its surroundings included."""

_WORD_BEFORE = re.compile(rb"[A-Za-z0-9_.~)}\]%*$/-]\Z")
_OPTION_BEFORE = re.compile(rb"(?:(?:\A|[^A-Za-z0-9-])-[ILBF]|-isystem|file://)\Z")


@dataclass(frozen=True)
class Finding:
    """Something that must not be in a member: `kind` names the rule, `text` shows it."""

    kind: str
    offset: int
    text: str


def find_paths(data: Buffer, policy: Policy) -> Iterator[Finding]:
    """Absolute build paths, in the order in which they appear.

    >>> from builder.audit.policy import default_policy
    >>> text = b"in package/inputs/x.py, compiled from '/inputs/x.cu'"
    >>> found = find_paths(text, default_policy())
    >>> [(finding.offset, finding.text) for finding in found]
    [(39, '/inputs/x.cu')]
    """
    for base, first, chunk in _chunks(data):
        for match in policy.forbidden_path.finditer(chunk, first):
            if match.start() >= first + _CHUNK:
                break
            before = chunk[max(0, match.start() - 16) : match.start()]
            if _WORD_BEFORE.search(before) and not _OPTION_BEFORE.search(before):
                continue
            path = match.group()
            if not policy.allowed_path.fullmatch(path):
                yield Finding("path", base + match.start(), path.decode("ascii"))


def find_secrets(data: Buffer, policy: Policy) -> Iterator[Finding]:
    """Secrets of known shapes. `text` names the kind and shows only how it begins."""
    for base, first, chunk in _chunks(data):
        for secret in policy.secret_contents:
            for start in secret.starts:
                for match in _matches(chunk, first, start, secret.pattern):
                    text = f"{secret.name} ({match.group()[:12].decode('ascii')}…)"
                    yield Finding("secret", base + match.start(), text)


def _matches(
    chunk: bytes, first: int, literal: bytes, pattern: re.Pattern[bytes]
) -> Iterator[re.Match[bytes]]:
    position = chunk.find(literal, first)
    while 0 <= position < first + _CHUNK:
        before = chunk[position - 1 : position]
        if (match := pattern.match(chunk, position)) and not before.isalnum():
            yield match
        position = chunk.find(literal, position + 1)


def _chunks(data: Buffer) -> Iterator[tuple[int, int, bytes]]:
    """(file offset of the chunk's start, where its own part begins, bytes).

    A chunk's own part is `_CHUNK` long; before and after it is what a match may touch. Copies,
    because searching a copy is faster than searching a memory map.
    """
    for start in range(0, len(data), _CHUNK):
        base = max(0, start - 16)
        yield base, start - base, bytes(data[base : start + _CHUNK + _OVERLAP])
