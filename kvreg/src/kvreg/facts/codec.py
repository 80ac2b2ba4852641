"""Frozen dataclasses to JSON-ready trees, back again, and to a JSON Schema.

Types: str, int, float, bool, ``X | None``, ``tuple[X, ...]``, ``Mapping[str, X]`` and dataclasses.
Reading collects every problem instead of the first. A key that is absent but may be None is read as
None and reported in `absent`, since an older writer did not know it.
"""

import re
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from kvreg.errors import Problem

_PLAIN: dict[Any, tuple[str, str]] = {
    str: ("string", "a text"),
    int: ("integer", "a whole number"),
    float: ("number", "a number"),
    bool: ("boolean", "true or false"),
}
_LARGEST = 1 << 53
_LONGEST = 1 << 16
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def to_dict(value: Any) -> Any:
    """The JSON-ready tree of a value."""
    if is_dataclass(value):
        return {item.name: to_dict(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, tuple):
        return [to_dict(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_dict(value[key]) for key in sorted(value)}
    return value


def from_dict(
    kind: Any, tree: Any, where: str, problems: list[Problem], absent: list[str], path: str = ""
) -> Any:
    """The value of type `kind` that `tree` holds; meaningless when `problems` were added."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if tree is None:
            return None
        inner = next(item for item in arguments if item is not type(None))
        return from_dict(inner, tree, where, problems, absent, path)
    if origin is tuple:
        return _items(arguments[0], tree, where, problems, absent, path)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(arguments[1], tree, where, problems, absent, path)
    if is_dataclass(kind):
        return _record(kind, tree, where, problems, absent, path)
    return _plain(kind, tree, where, problems, path)


def printable(tree: Any) -> Any:
    """A tree whose texts have no control characters and are not endless."""
    if isinstance(tree, str):
        text = tree.encode("utf-8", "replace").decode("utf-8")
        return _CONTROL.sub("\ufffd", text[:_LONGEST])
    if isinstance(tree, list):
        return [printable(item) for item in tree]
    if isinstance(tree, dict):
        return {printable(key): printable(value) for key, value in tree.items()}
    return tree


def json_schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = next(item for item in arguments if item is not type(None))
        return {"anyOf": [json_schema(inner), {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": json_schema(arguments[0])}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": json_schema(arguments[1])}
    if is_dataclass(kind):
        hints = _hints(kind)
        return {
            "type": "object",
            "description": " ".join((kind.__doc__ or "").split()),
            "properties": {name: json_schema(hint) for name, hint in hints.items()},
            "required": [name for name, hint in hints.items() if not _nullable(hint)],
            "additionalProperties": False,
        }
    return {"type": _PLAIN[kind][0]}


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {item.name: hints[item.name] for item in fields(kind)}


def _nullable(hint: Any) -> bool:
    return type(None) in typing.get_args(hint)


def _record(
    kind: Any, tree: Any, where: str, problems: list[Problem], absent: list[str], path: str
) -> Any:
    if not isinstance(tree, dict):
        problems.append(_wrong(where, path, "an object", tree))
        return None
    before = len(problems)
    hints = _hints(kind)
    values = {}
    for name, hint in hints.items():
        key = f"{path}.{name}" if path else name
        if name in tree:
            values[name] = from_dict(hint, tree[name], where, problems, absent, key)
        elif _nullable(hint):
            values[name] = None
            absent.append(key)
        else:
            problems.append(Problem(f"{where}: {key}", "required key is missing"))
    for name in tree:
        if name not in hints:
            key = f"{path}.{name}" if path else str(name)
            known = ", ".join(hints)
            problems.append(
                Problem(f"{where}: {key[:200]}", "unknown key (is this kvreg too old?)", known)
            )
    return kind(**values) if len(problems) == before else None


def _items(
    kind: Any, tree: Any, where: str, problems: list[Problem], absent: list[str], path: str
) -> tuple[Any, ...]:
    if not isinstance(tree, list):
        problems.append(_wrong(where, path, "an array", tree))
        return ()
    return tuple(
        from_dict(kind, item, where, problems, absent, f"{path}[{index}]")
        for index, item in enumerate(tree)
    )


def _mapping(
    kind: Any, tree: Any, where: str, problems: list[Problem], absent: list[str], path: str
) -> dict[str, Any]:
    if not isinstance(tree, dict):
        problems.append(_wrong(where, path, "an object", tree))
        return {}
    return {
        _plain(str, key, where, problems, path): from_dict(
            kind, value, where, problems, absent, f"{path}.{key}"[:200]
        )
        for key, value in tree.items()
    }


def _plain(kind: Any, tree: Any, where: str, problems: list[Problem], path: str) -> Any:
    fits = isinstance(tree, kind) and (kind is bool or not isinstance(tree, bool))
    if kind is float and isinstance(tree, int) and not isinstance(tree, bool):
        tree, fits = float(tree), True
    if fits and kind in (int, float) and not abs(tree) < _LARGEST:
        fits = False
    if kind is str and fits and (_CONTROL.search(tree) or len(tree) > _LONGEST):
        # What is printed later must not be able to steer a terminal.
        problems.append(_wrong(where, path, "printable text", tree))
        return ""
    if not fits:
        problems.append(_wrong(where, path, _PLAIN[kind][1], tree))
    return tree


def _wrong(where: str, path: str, expected: str, found: Any) -> Problem:
    return Problem(f"{where}: {path}", "wrong value", expected, repr(found)[:120])
