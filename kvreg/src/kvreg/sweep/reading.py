"""Reading a plan's TOML: what `kvreg.model.schema` reads, and numbers, lists and settings."""

import math
import re
from typing import Any

from kvreg.model.schema import _NOTHING, TableReader

Setting = str | int | float | bool
"""A value of an engine's command-line option."""


class PlanReader(TableReader):
    """A table of a plan; collects every problem instead of the first."""

    def whole(self, key: str, minimum: int, default: int | None = None) -> int:
        """An integer of at least `minimum`; `default` if it is absent and there is one."""
        if default is not None and key not in self._table:
            self._taken.add(key)
            return default
        return self.integer(key, minimum)

    def number(self, key: str, above: float = 0.0, most: float = math.inf) -> float:
        """A number greater than `above` and at most `most`."""
        value = self._take(key)
        if value is _NOTHING:
            return most if math.isfinite(most) else above + 1
        right = isinstance(value, int | float) and not isinstance(value, bool)
        if not right or not above < value <= most:
            limit = f"a number above {above:g}" + (f", at most {most:g}" if most < math.inf else "")
            self._wrong(key, limit, value)
            return most if math.isfinite(most) else above + 1
        return float(value)

    def maybe_number(self, key: str, default: float) -> float:
        """A number greater than 0, or `default` if it is absent."""
        if key not in self._table:
            self._taken.add(key)
            return default
        return self.number(key)

    def ascending(self, key: str, *, optional: bool = False) -> tuple[int, ...]:
        """Different positive integers in ascending order; () if absent and `optional`."""
        value = self._take(key, optional=optional)
        if value is _NOTHING:
            return () if optional else (1,)
        right = isinstance(value, list) and all(
            isinstance(item, int) and not isinstance(item, bool) and item > 0 for item in value
        )
        if not right or not value or sorted(set(value)) != value:
            self._wrong(key, "positive integers in ascending order, none twice", value)
            return (1,)
        return tuple(value)

    def maybe_text(self, key: str, pattern: str, meaning: str, default: str) -> str:
        """A string that matches `pattern`, or `default` if it is absent."""
        if key not in self._table:
            self._taken.add(key)
            return default
        return self.text(key, pattern, meaning)

    def paragraph(self, key: str) -> str:
        """A text that may have several lines."""
        value = self._take(key)
        if isinstance(value, str) and value.strip():
            return value
        if value is not _NOTHING:
            self._wrong(key, "a text", value)
        return ""

    def settings(self, key: str, forbidden: frozenset[str] = frozenset()) -> dict[str, Setting]:
        """An optional table of command-line options: texts, numbers and flags."""
        reader = self.table(key, optional=True)
        result: dict[str, Setting] = {}
        for name in reader.names():
            value: Any = reader._take(name)
            if re.fullmatch(r"[a-z][a-z0-9-]*", name) is None:
                reader.report(name, "not an option's name", expected="such as max-model-len")
            elif name in forbidden:
                reader.report(name, "this option is set by the sweep itself")
            elif not isinstance(value, str | int | float):
                reader._wrong(name, "a text, a number, true or false", value)
            else:
                result[name] = value
        return result
