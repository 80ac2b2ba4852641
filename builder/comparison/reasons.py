"""Why two builds of the same sources differ, where that is known: policy as data.

A reason is claimed only when it accounts for what differs: with every match of its pattern replaced
by the same word, both sides are equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

REASONS = {
    "time-stamp": "a time of the build",
    "build-path": "a path of the build",
    "process-id": "nvcc's temporary name, which holds its process id",
    "module-id": "nvcc's module id, which it makes of the file's time, folder and its process id"
    " where a source defines no external name",
    "build-id": "the linker's hash over the rest of the file",
    "ordering": "the same parts in another order",
    "compiler": "compilers name themselves, and are not the same",
    "packing": "the same bytes, packed in another way",
    "file-mode": "permissions that the build gave its files",
    "follows": "it follows from what differs elsewhere",
}

_HEX8 = rb"[0-9a-f]{8}"
_PATTERNS: tuple[tuple[str, re.Pattern[bytes]], ...] = (
    ("process-id", re.compile(rb"tmpxft_" + _HEX8 + rb"_" + _HEX8)),
    # _GLOBAL__N__<hash>_<length>_<file>_cu_<hash>[_<process>], also inside mangled names, whose
    # lengths in front change with it; _INTERNAL_… and __nv_static_… hold the same.
    (
        "module-id",
        re.compile(
            rb"\d*(?:_GLOBAL__N__|_INTERNAL_|__nv_static_\d+__|N__)"
            + _HEX8
            + rb"_\d+_\w+?_"
            + _HEX8
            + rb"(?:_\d+)?"
        ),
    ),
    (
        "time-stamp",
        re.compile(
            rb"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"
            rb"|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ 0-3]\d \d{4}"
            rb"|\b\d\d:\d\d:\d\d\b"
        ),
    ),
    ("build-path", re.compile(rb"/(?:[\w.+~@-]+/)+(?:[\w.+~@-]+)?")),
    (
        "compiler",
        re.compile(
            rb"GCC: \([^\0)]*\) [\d.]+|clang version [\d.]+|Build cuda_[\w./]+|V\d+\.[\d.]+"
        ),
    ),
)
_STRING = re.compile(rb"[\x20-\x7e]{6,}")


def explain(a: bytes, b: bytes) -> str | None:
    """The reason that accounts for all that differs between two pieces of content, if one does.

    >>> explain(b"built 2026-11-30", b"built 2026-12-01")
    'time-stamp'
    >>> explain(b"/tmp/a/x.cu", b"/home/me/x.cu")
    'build-path'
    >>> explain(b"one", b"two") is None
    True
    """
    for reason, pattern in _PATTERNS:
        if pattern.sub(b"\0", a) == pattern.sub(b"\0", b):
            return reason
    return _by_strings(a, b)


def _by_strings(a: bytes, b: bytes) -> str | None:
    """By the strings that only one side has: content between them may have moved."""
    ours, theirs = set(_STRING.findall(a)), set(_STRING.findall(b))
    only_a, only_b = ours - theirs, theirs - ours
    if not only_a or not only_b:
        return None
    for reason, pattern in _PATTERNS:
        changed = {pattern.sub(b"\0", s) for s in only_a}
        if changed == {pattern.sub(b"\0", s) for s in only_b} and changed != only_a:
            return reason
    return None


def samples(a: bytes, b: bytes, most: int = 3) -> tuple[str, ...]:
    """Strings that only one side has, as lines of a diff; none where no text differs."""
    ours, theirs = set(_STRING.findall(a)), set(_STRING.findall(b))
    return (*_lines("-", ours - theirs, most), *_lines("+", theirs - ours, most))


def _lines(sign: str, strings: Iterable[bytes], most: int) -> list[str]:
    return [f"{sign} {s[:160].decode('ascii')}" for s in sorted(strings)[:most]]
