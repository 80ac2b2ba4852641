"""Canonical JSON against an independent implementation of RFC 8785."""

import json
import math
import struct

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from kvreg.model.canonical import MAX_SAFE_INTEGER, canonical_json

texts = st.text(st.characters(exclude_categories=("Cs",)))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=30
)


@given(values)
def test_equals_the_oracle(value):
    assert canonical_json(value) == rfc8785.dumps(value)


@given(st.binary(min_size=8, max_size=8))
def test_every_double_equals_the_oracle_and_survives(raw):
    (number,) = struct.unpack("<d", raw)
    if not math.isfinite(number):
        with pytest.raises(ValueError):
            canonical_json(number)
        return
    text = canonical_json(number)
    assert text == rfc8785.dumps(number)
    assert float(text) == number


@given(values)
def test_is_a_fixed_point(value):
    raw = canonical_json(value)
    # Integral doubles below 2**53 come back as integers, which have the same form; larger ones
    # have no exact integer form, so they are read as doubles.
    again = json.loads(raw, parse_int=lambda text: float(text) if len(text) > 15 else int(text))
    assert canonical_json(again) == raw


@pytest.mark.parametrize(
    ("number", "text"),
    # The vectors of RFC 8785, appendix B.
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("41b3de4355555553", "333333333.3333332"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_vectors_of_the_standard(number, text):
    (value,) = struct.unpack(">d", bytes.fromhex(number))
    assert canonical_json(value).decode() == text


def test_keys_are_ordered_by_utf16_code_units():
    # U+1F600 comes after U+FB33 by code point and before it by UTF-16 code unit.
    assert canonical_json({"\ufb33": 1, "\U0001f600": 2}) == '{"\U0001f600":2,"\ufb33":1}'.encode()


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        MAX_SAFE_INTEGER + 1,
        -MAX_SAFE_INTEGER - 1,
        "\ud800",
        {"\udfff": 1},
        {1: 2},
        {None: 2},
        b"bytes",
        {1, 2},
        object(),
    ],
)
def test_what_has_no_canonical_form_is_refused(value):
    with pytest.raises(ValueError):
        canonical_json({"inside": [value]})
