"""Canonical JSON by RFC 8785 (JCS): one value, one sequence of bytes.

>>> canonical_json({"b": [1, 2.0, 1e21], "a": "ü"})
b'{"a":"\\xc3\\xbc","b":[1,2,1e+21]}'
"""

import json
import math
from collections.abc import Mapping
from typing import Any

MAX_SAFE_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader keeps exact (I-JSON, RFC 7493)."""


def canonical_json(value: Any) -> bytes:
    """Serialise `value` (None, bool, int, float, str, sequences, mappings) canonically.

    Raises `ValueError` for what has no canonical form: NaN and infinities, integers beyond
    2**53 - 1, strings with lone surrogates, keys that are not strings, other types.
    """
    parts: list[str] = []
    _write(value, parts)
    return "".join(parts).encode("utf-8")


def _write(value: Any, parts: list[str]) -> None:
    match value:
        case None:
            parts.append("null")
        case True:
            parts.append("true")
        case False:
            parts.append("false")
        case int():
            if abs(value) > MAX_SAFE_INTEGER:
                raise ValueError(f"integer {value} is beyond 2**53 - 1")
            parts.append(int.__repr__(value))
        case float():
            parts.append(_number(value))
        case str():
            parts.append(_string(value))
        case list() | tuple():
            _write_array(value, parts)
        case Mapping():
            _write_object(value, parts)
        case _:
            raise ValueError(f"{type(value).__name__} has no JSON form")


def _write_array(items: list[Any] | tuple[Any, ...], parts: list[str]) -> None:
    parts.append("[")
    for index, item in enumerate(items):
        if index:
            parts.append(",")
        _write(item, parts)
    parts.append("]")


def _write_object(mapping: Mapping[Any, Any], parts: list[str]) -> None:
    for key in mapping:
        if not isinstance(key, str):
            raise ValueError(f"object key {key!r} is not a string")
    parts.append("{")
    # RFC 8785 orders by UTF-16 code units, which differs from code points above U+FFFF.
    ordered = sorted(mapping, key=_utf16)
    for index, key in enumerate(ordered):
        if index:
            parts.append(",")
        parts.append(_string(key))
        parts.append(":")
        _write(mapping[key], parts)
    parts.append("}")


def _utf16(text: str) -> bytes:
    try:
        return text.encode("utf-16-be")
    except UnicodeEncodeError:
        raise ValueError(f"string {text!r} holds a lone surrogate") from None


def _string(text: str) -> str:
    _utf16(text)
    # json escapes exactly what RFC 8785 asks for: ", \, and controls, the short forms first.
    return json.dumps(str(text), ensure_ascii=False)


def _number(value: float) -> str:
    """The form that ECMAScript's Number::toString gives."""
    if not math.isfinite(value):
        raise ValueError(f"{value} has no JSON form")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = f"{float.__repr__(abs(value))}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    # value = 0.<digits> * 10**point, with no zero at either end of digits
    point = len(whole) + int(exponent or 0)
    digits = whole + fraction
    stripped = digits.lstrip("0")
    point -= len(digits) - len(stripped)
    digits = stripped.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        text = digits + "0" * (point - count)
    elif 0 < point <= 21:
        text = f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:
        text = "0." + "0" * -point + digits
    else:
        power = f"e{'+' if point > 0 else '-'}{abs(point - 1)}"
        text = digits[0] + (f".{digits[1:]}" if count > 1 else "") + power
    return sign + text
