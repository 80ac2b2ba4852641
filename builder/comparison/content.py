"""Contents without a structure that is known here: bytes, and text line by line."""

from __future__ import annotations

import difflib

from builder.comparison.model import Part
from builder.comparison.reasons import explain, samples

TEXT = (".py", ".pyi", ".txt", ".json", ".toml", ".md", ".cfg", ".h", ".cuh", ".cu", ".cmake")
"""Ends of names of text files; others are text when they are UTF-8."""

_MOST_LINES = 20_000
_SHOWN = 12
_WIDTH = 200


def how_bytes_differ(a: bytes, b: bytes) -> str:
    """In words: sizes, how many bytes differ, and the first that does.

    >>> how_bytes_differ(b"abcd", b"abXd")
    '1 of 4 bytes differs, the first at 0x2'
    >>> how_bytes_differ(b"abc", b"abcd")
    '3 and 4 bytes, the first difference at 0x3'
    """
    size = min(len(a), len(b))
    both = int.from_bytes(a[:size]) ^ int.from_bytes(b[:size])
    mask = both.to_bytes(size) if size else b""
    first = size - len(mask.lstrip(b"\0"))
    if len(a) != len(b):
        return f"{len(a):,} and {len(b):,} bytes, the first difference at {first:#x}"
    count = size - mask.count(0)
    verb = "differs" if count == 1 else "differ"
    return f"{count:,} of {size:,} bytes {verb}, the first at {first:#x}"


def compare_bytes(a: bytes, b: bytes, where: str = "content") -> Part:
    """One part for the whole content."""
    return Part(where, how_bytes_differ(a, b), explain(a, b))


def compare_strings(a: bytes, b: bytes, where: str) -> Part:
    """As `compare_bytes`, with strings that only one side has."""
    return Part(where, how_bytes_differ(a, b), explain(a, b), samples(a, b))


def is_text(path: str, a: bytes, b: bytes) -> bool:
    """Whether both are text: by name, or by being UTF-8 without NUL bytes."""
    if b"\0" in a or b"\0" in b:
        return False
    if path.endswith(TEXT) or ".dist-info/" in path:
        return True
    try:
        a.decode("utf-8"), b.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def compare_text(a: bytes, b: bytes) -> Part:
    """A short diff without context."""
    ours = a.decode("utf-8", "replace").splitlines()
    theirs = b.decode("utf-8", "replace").splitlines()
    if ours == theirs:
        return Part("line ends", how_bytes_differ(a, b))
    if sorted(ours) == sorted(theirs):
        return Part("lines", "the same lines", ("ordering",))
    if max(len(ours), len(theirs)) > _MOST_LINES:
        return compare_bytes(a, b)
    first = next(
        (i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]),
        min(len(ours), len(theirs)),
    )
    diff = list(difflib.unified_diff(ours, theirs, n=0, lineterm=""))[2:]
    shown = tuple(line[:_WIDTH] for line in diff[:_SHOWN])
    more = (f"… {len(diff) - _SHOWN} more lines of the diff",) if len(diff) > _SHOWN else ()
    changed = sum(line[:1] in "+-" for line in diff)
    return Part(f"line {first + 1}", f"{changed} lines differ", explain(a, b), shown + more)


def compare_bytecode(a: bytes, b: bytes) -> Part:
    """A ``.pyc`` file, whose head holds the time of its source (PEP 552)."""
    if a[16:] == b[16:] and a[:8] == b[:8] and not a[4] & 1:
        return Part("header", "the time of the source differs", ("time-stamp",))
    return compare_bytes(a, b)
