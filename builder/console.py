"""What builder's commands show while something long runs."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable

from kvreg.console import note, progress

_STEP = re.compile(r"::step (.+)")
_NINJA = re.compile(r"\[(\d+)/(\d+)\] ")
QUIET_INTERVAL = 60.0
"""Seconds between progress lines where standard error is not a terminal."""


class BuildMonitor:
    """Turns the lines of a build container into steps and a bar.

    On a terminal a bar counts ninja's edges; elsewhere a line is written for every step and,
    while compiling, once a minute.
    """

    def __init__(self, say: Callable[[str], None] = note) -> None:
        self._say = say
        self._bar = None
        self._last = 0.0

    def __call__(self, line: str) -> None:
        step = _STEP.match(line)
        if step:
            self.close()
            self._say(f"  {step[1]} …")
            return
        edge = _NINJA.match(line)
        if edge:
            self._advance(int(edge[1]), int(edge[2]))

    def _advance(self, done: int, total: int) -> None:
        if sys.stderr.isatty():
            if self._bar is None:
                self._bar = progress(total, "compiling", "units")
            self._bar.n = done
            self._bar.refresh()
        elif time.monotonic() - self._last > QUIET_INTERVAL:
            self._last = time.monotonic()
            self._say(f"    {done} of {total}")

    def close(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
