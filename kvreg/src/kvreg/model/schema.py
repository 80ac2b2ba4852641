"""A reader of untrusted tables (TOML or JSON) that collects every problem instead of the first.

A `TableReader` takes the keys that it is asked for; `finish` reports the keys that nobody asked
for, so that a misspelt key is an error. Values that are wrong are replaced by harmless ones, and
the caller must look at the problems before it uses anything.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from kvreg.errors import Problem
from kvreg.model.fact import ANYTHING, Fact

Reader = TypeVar("Reader", bound="TableReader")

_NOTHING: Any = object()
_PRINTABLE = re.compile(r"[^\x00-\x1f\x7f]*")


class TableReader:
    """Reads one table; `path` is its dotted name and `where` the document's, for messages."""

    def __init__(
        self,
        value: object,
        where: str,
        path: str,
        problems: list[Problem],
        *,
        absent: bool = False,
    ) -> None:
        self.where = where
        self.path = path
        self.problems = problems
        # Of an absent table only its absence is reported, not each key that it lacks.
        self._absent = absent
        self._taken: set[str] = set()
        self._table: Mapping[str, Any] = {}
        if isinstance(value, Mapping):
            self._table = value
        elif not absent:
            self._wrong("", "a table", value)

    def text(self, key: str, pattern: str = r".*\S.*", meaning: str = "a text") -> str:
        """A string of printable characters that matches `pattern` fully."""
        value = self._take(key)
        if value is _NOTHING:
            return ""
        if (
            isinstance(value, str)
            and _PRINTABLE.fullmatch(value) is not None
            and re.fullmatch(pattern, value) is not None
        ):
            return value
        self._wrong(key, meaning, value)
        return ""

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        """One of `choices`."""
        value = self._take(key)
        if value is _NOTHING or value in choices:
            return choices[0] if value is _NOTHING else value
        self._wrong(key, "one of " + ", ".join(choices), value)
        return choices[0]

    def integer(self, key: str, minimum: int) -> int:
        """An integer of at least `minimum`."""
        value = self._take(key)
        if value is _NOTHING:
            return minimum
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            self._wrong(key, f"an integer, at least {minimum}", value)
            return minimum
        return value

    def flag(self, key: str) -> bool:
        """A boolean."""
        value = self._take(key)
        if value is _NOTHING or isinstance(value, bool):
            return value is True
        self._wrong(key, "true or false", value)
        return False

    def texts(
        self, key: str, pattern: str = r".+", meaning: str = "a string", minimum: int = 1
    ) -> tuple[str, ...]:
        """An array of at least `minimum` different strings, each matching `pattern`."""
        value = self._take(key)
        if value is _NOTHING:
            return ()
        if not isinstance(value, list):
            self._wrong(key, f"an array, each item {meaning}", value)
            return ()
        for item in value:
            if not isinstance(item, str) or re.fullmatch(pattern, item) is None:
                self._wrong(key, f"an array, each item {meaning}", item)
                return ()
        if len(value) < minimum or len(set(value)) != len(value):
            self._wrong(key, f"{minimum} or more items, none twice", value)
        return tuple(value)

    def fact(self, key: str) -> Fact:
        """An inline table ``{require = ..., validated = ...}`` that makes sense."""
        value = self._take(key, expected="{ require = ..., validated = ... }")
        if value is _NOTHING:
            return Fact(ANYTHING, "")
        before = len(self.problems)
        table = TableReader(value, self.where, self._name(key), self.problems)
        fact = Fact(require=table.text("require"), validated=table.text("validated"))
        table.finish()
        if len(self.problems) == before and (problem := fact.problem()) is not None:
            self.report(key, problem)
        return fact

    def table(self: Reader, key: str, *, optional: bool = False) -> Reader:
        """A sub-table; one that is absent reads as empty when it is `optional`."""
        value = self._take(key, expected="a table", optional=optional)
        absent = value is _NOTHING
        return type(self)(value, self.where, self._name(key), self.problems, absent=absent)

    def tables(self: Reader, key: str) -> list[Reader]:
        """An array of tables, empty when absent."""
        value = self._take(key, optional=True)
        if value is _NOTHING:
            return []
        if not isinstance(value, list):
            self._wrong(key, "an array of tables", value)
            return []
        return [
            type(self)(item, self.where, f"{self._name(key)}[{index}]", self.problems)
            for index, item in enumerate(value)
        ]

    def mapping(self, key: str, pattern: str, meaning: str) -> dict[str, str]:
        """An optional table of strings whose keys match `pattern`."""
        reader = self.table(key, optional=True)
        result = {}
        for name in reader.names():
            value = reader._take(name)
            if re.fullmatch(pattern, name) is None:
                reader.report(name, "this key is not allowed", expected=meaning)
            elif not isinstance(value, str):
                reader._wrong(name, "a string", value)
            else:
                result[name] = value
        return result

    def names(self) -> list[str]:
        """All keys of the table, whether taken or not."""
        return list(self._table)

    def report(
        self, key: str, what: str, *, expected: str | None = None, found: str | None = None
    ) -> None:
        """Add a problem with `key`."""
        where = f"{self.where}: {self._name(key)}"
        self.problems.append(Problem(where, what, expected, found))

    def finish(self) -> None:
        """Report the keys that were not asked for."""
        for key in self._table:
            if key not in self._taken:
                known = ", ".join(sorted(self._taken)) or "no keys"
                self.report(key, "unknown key", expected=f"one of: {known}")

    def _take(self, key: str, expected: str | None = None, optional: bool = False) -> Any:
        self._taken.add(key)
        value = self._table.get(key, _NOTHING)
        if value is _NOTHING and not optional and not self._absent:
            self.report(key, "required key is missing", expected=expected)
        return value

    def _wrong(self, key: str, expected: str, found: object) -> None:
        self.report(key, "wrong value", expected=expected, found=repr(found)[:120])

    def _name(self, key: str) -> str:
        return ".".join(part for part in (self.path, key) if part)
