"""Manifests and descriptors: round trips, and hostile input."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg.errors import VerificationError
from kvreg.model.canonical import canonical_json
from kvreg.model.digest import sha256_bytes
from kvreg.model.oci import (
    MEDIA_TYPE_PROFILE,
    MEDIA_TYPE_RUNTIME,
    MEDIA_TYPE_WHEEL,
    Descriptor,
    Index,
    Manifest,
    empty_descriptor,
)

DIGEST = sha256_bytes(b"")
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
media_types = st.sampled_from([MEDIA_TYPE_PROFILE, MEDIA_TYPE_WHEEL, "text/plain"])
descriptors = st.builds(
    Descriptor,
    media_types,
    st.binary(max_size=4).map(sha256_bytes),
    st.integers(0, 2**53 - 1),
    st.dictionaries(texts, texts, max_size=3),
    st.none() | st.just(MEDIA_TYPE_RUNTIME),
)
manifests = st.builds(
    Manifest,
    descriptors,
    st.lists(descriptors, max_size=3).map(tuple),
    st.none() | st.just(MEDIA_TYPE_RUNTIME),
    st.dictionaries(texts, texts, max_size=3),
    st.none() | descriptors,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(manifests)
def test_manifests_survive_a_round_trip(manifest):
    raw = manifest.to_bytes()
    assert Manifest.parse(raw) == manifest
    assert raw == canonical_json(json.loads(raw))
    assert manifest.descriptor().digest == sha256_bytes(raw)


@given(st.lists(descriptors, max_size=4))
def test_indexes_survive_a_round_trip(items):
    index = Index(tuple(items))
    assert Index.parse(index.to_bytes()) == index


@given(st.binary(max_size=80))
def test_any_bytes_are_refused_in_our_own_words(raw):
    with pytest.raises(VerificationError):
        Manifest.parse(raw)


@given(
    manifests,
    st.sampled_from(["schemaVersion", "mediaType", "config", "layers", "annotations", "subject"]),
    json_values,
)
def test_a_manifest_with_any_value_anywhere_is_read_or_refused(manifest, key, value):
    tree = json.loads(manifest.to_bytes())
    tree[key] = value
    try:
        Manifest.parse(json.dumps(tree).encode())
    except VerificationError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("digest", "sha256:" + "A" * 64),
        ("digest", "sha256:../../etc/passwd"),
        ("digest", None),
        ("size", -1),
        ("size", 2**53),
        ("size", True),
        ("size", 1.5),
        ("mediaType", "no slash"),
        ("mediaType", "text/plain\r\nX: y"),
        ("annotations", {"key": 1}),
        ("annotations", []),
        ("artifactType", 7),
    ],
)
def test_hostile_descriptors_are_refused(key, value):
    table = Descriptor("text/plain", DIGEST, 0).to_dict() | {key: value}
    with pytest.raises(VerificationError):
        Descriptor.from_dict(table)


def test_the_same_key_twice_is_refused():
    raw = b'{"schemaVersion":2,"schemaVersion":2,"manifests":[]}'
    with pytest.raises(VerificationError, match="twice"):
        Index.parse(raw)


def test_deep_nesting_is_refused():
    with pytest.raises(VerificationError):
        Index.parse(b"[" * 100_000)


def test_empty_descriptor_is_that_of_the_specification():
    assert empty_descriptor().size == 2
    assert empty_descriptor().digest.endswith("f61caaff8a")
