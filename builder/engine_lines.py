"""Lines out of a stream of byte chunks."""

from __future__ import annotations

from collections.abc import Callable

LONGEST = 1 << 16
"""Bytes after which a line is handed on though its end has not come."""


class LineSplitter:
    """Hands each line to `on_line` as soon as its end has come, decoded and without that end.

    Bytes that are not UTF-8 become replacement characters: a log must never stop a build.

    >>> seen = []
    >>> splitter = LineSplitter(seen.append)
    >>> splitter.feed(b"one\\ntw"); splitter.feed(b"o\\r\\nthree"); splitter.end(); seen
    ['one', 'two', 'three']
    """

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._emit(line)
        while len(self._rest) > LONGEST:
            self._emit(self._rest[:LONGEST])
            self._rest = self._rest[LONGEST:]

    def end(self) -> None:
        """Hand on an unfinished last line."""
        if self._rest:
            self._emit(self._rest)
            self._rest = b""

    def _emit(self, line: bytes) -> None:
        self._on_line(line.rstrip(b"\r").decode("utf-8", "replace"))
