"""Why two builds of the same sources differ, where that is known: policy as data.

A reason is claimed only when it accounts for what differs: with every match of its pattern replaced
by the same word, both sides are equal.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

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
# _GLOBAL__N__<hash>_<length>_<file>_cu_<hash>[_<process>], also inside mangled names, whose
# lengths in front change with it; _INTERNAL_… and __nv_static_… hold the same.
_MODULE_ID = re.compile(
    rb"\d*(?:_GLOBAL__N__|_INTERNAL_|__nv_static_\d+__|N__)"
    + _HEX8
    + rb"_\d+_\w+?_"
    + _HEX8
    + rb"(?:_\d+)?"
)
_SAME = "…".encode()
_PATTERNS: tuple[tuple[str, re.Pattern[bytes]], ...] = (
    ("process-id", re.compile(rb"tmpxft_" + _HEX8 + rb"_" + _HEX8)),
    ("module-id", _MODULE_ID),
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
_LARGEST = 16 << 20
"""Bytes of a content that is gone through as a whole, once for each set of patterns."""
_STRING = re.compile(rb"[\x20-\x7e]{6,}")


def explain(a: bytes, b: bytes) -> tuple[str, ...]:
    """The fewest reasons that account for all that differs between two contents; () for none.

    >>> explain(b"built 2026-11-30", b"built 2026-12-01")
    ('time-stamp',)
    >>> explain(b"/tmp/a/x.cu", b"/home/me/x.cu")
    ('build-path',)
    >>> explain(b"one", b"two")
    ()
    """
    relevant = [(code, p) for code, p in _PATTERNS if p.search(a) and p.search(b)]
    if max(len(a), len(b)) <= _LARGEST:
        found = _fewest(relevant, lambda pattern, side: pattern.sub(_SAME, side), a, b)
        if found:
            return found
    # Content between strings may have moved, so the strings that one side alone has are compared.
    ours, theirs = set(_STRING.findall(a)), set(_STRING.findall(b))
    if not ours - theirs or not theirs - ours:
        return ()
    return _fewest(
        relevant,
        lambda pattern, side: frozenset(pattern.sub(_SAME, s) for s in side),
        frozenset(ours - theirs),
        frozenset(theirs - ours),
    )


def _fewest(
    patterns: Sequence[tuple[str, re.Pattern[bytes]]],
    replace: Callable[[re.Pattern[bytes], Any], Any],
    a: Any,
    b: Any,
) -> tuple[str, ...]:
    """The smallest set of patterns with which both sides become equal."""
    for count in range(1, len(patterns) + 1):
        for chosen in itertools.combinations(patterns, count):
            one, other = a, b
            for _, pattern in chosen:
                one, other = replace(pattern, one), replace(pattern, other)
            if one == other:
                return tuple(code for code, _ in chosen)
    return ()


def without_ids(name: str) -> str:
    """A symbol's name with the same word in place of every module id.

    >>> without_ids("_ZN41_GLOBAL__N__47a96093_4_k_cu_a8ae23a5_94185touchEPi")
    '_ZN…touchEPi'
    """
    return _MODULE_ID.sub(_SAME, name.encode()).decode("utf-8", "replace")


def samples(a: bytes, b: bytes, most: int = 3) -> tuple[str, ...]:
    """Strings that only one side has, as lines of a diff; none where no text differs."""
    ours, theirs = set(_STRING.findall(a)), set(_STRING.findall(b))
    return (*_lines("-", ours - theirs, most), *_lines("+", theirs - ours, most))


def _lines(sign: str, strings: Iterable[bytes], most: int) -> list[str]:
    return [f"{sign} {s[:160].decode('ascii')}" for s in sorted(strings)[:most]]
