"""Manifests of every kind, and hostile ones."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreg.errors import VerificationError
from kvreg.model.oci import MEDIA_TYPE_INDEX, MEDIA_TYPE_MANIFEST, Descriptor, Manifest
from registry.content import DOCKER_LIST, DOCKER_MANIFEST, parse_content
from registry.text import is_plain_name

ONE = {"mediaType": "a/b", "digest": "sha256:" + "1" * 64, "size": 1}
TWO = {"mediaType": "a/c", "digest": "sha256:" + "2" * 64, "size": 2}


def image(**changes: Any) -> dict[str, Any]:
    return {
        "schemaVersion": 2,
        "mediaType": MEDIA_TYPE_MANIFEST,
        "config": ONE,
        "layers": [TWO],
        **changes,
    }


def raw(table: object) -> bytes:
    return json.dumps(table).encode()


@pytest.mark.parametrize("kind", [MEDIA_TYPE_MANIFEST, DOCKER_MANIFEST])
def test_images(kind: str) -> None:
    data = raw(image(mediaType=kind))
    content = parse_content(data, kind)
    assert content.descriptor == Descriptor.of_bytes(kind, data)
    assert [blob.digest for blob in content.blobs] == [ONE["digest"], TWO["digest"]]
    assert content.as_referrer.artifact_type == "a/b"


@pytest.mark.parametrize("kind", [MEDIA_TYPE_INDEX, DOCKER_LIST])
def test_indexes(kind: str) -> None:
    content = parse_content(raw({"schemaVersion": 2, "mediaType": kind, "manifests": [ONE]}))
    assert [item.digest for item in content.manifests] == [ONE["digest"]]
    assert content.blobs == ()


def test_the_media_type_may_be_left_out() -> None:
    assert parse_content(raw({"schemaVersion": 2, "manifests": []})).manifests == ()
    table = image()
    del table["mediaType"]
    assert parse_content(raw(table)).descriptor.media_type == MEDIA_TYPE_MANIFEST


def test_our_own_manifest_is_read_as_it_was_written() -> None:
    one, two = Descriptor.from_dict(ONE), Descriptor.from_dict(TWO)
    manifest = Manifest(one, (two,), "application/x-t", {"k": "v"}, two)
    content = parse_content(manifest.to_bytes(), MEDIA_TYPE_MANIFEST)
    assert content.descriptor == manifest.descriptor()
    assert (content.subject, dict(content.annotations)) == (two, {"k": "v"})
    assert content.as_referrer == manifest.descriptor({"k": "v"})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"schemaVersion":2,"schemaVersion":2}',
        b"[" * 100_000,
        b" " * (4 * 1024 * 1024 + 1),
        raw(image(schemaVersion=1)),
        raw(image(mediaType="text/html")),
        raw(image(mediaType=7)),
        raw(image(config=None)),
        raw(image(layers={})),
        raw(image(layers=[{**ONE, "size": -1}])),
        raw(image(layers=[{**ONE, "size": 1e30}])),
        raw(image(layers=[{**ONE, "size": True}])),
        raw(image(layers=[{**ONE, "digest": "sha512:" + "1" * 128}])),
        raw(image(layers=[{**ONE, "digest": "sha256:" + "A" * 64}])),
        raw(image(layers=[{**ONE, "digest": "sha256:../../etc/passwd"}])),
        raw(image(layers=[{**ONE, "annotations": {"a": 1}}])),
        raw(image(subject="sha256:" + "1" * 64)),
        raw(image(annotations=[1])),
        raw(image(artifactType="no type")),
        raw(image(artifactType=["x/y"])),
    ],
)
def test_hostile_manifests_are_refused(data: bytes) -> None:
    with pytest.raises(VerificationError):
        parse_content(data, MEDIA_TYPE_MANIFEST)


def test_the_stores_word_must_not_contradict_the_bytes() -> None:
    with pytest.raises(VerificationError, match="mediaType"):
        parse_content(raw(image()), MEDIA_TYPE_INDEX)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=8,
)
_keys = st.sampled_from(
    ["schemaVersion", "mediaType", "config", "layers", "manifests", "subject", "annotations",
     "artifactType"]
)  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(_keys, _json | st.lists(st.just(ONE)), max_size=4), st.booleans())
def test_any_manifest_is_read_or_refused(changes: dict[str, Any], index: bool) -> None:
    kind = MEDIA_TYPE_INDEX if index else MEDIA_TYPE_MANIFEST
    try:
        content = parse_content(raw(image(**{"mediaType": kind, **changes})))
    except VerificationError:
        return
    for found in content.blobs + content.manifests:
        assert found.size >= 0
        assert len(found.digest) == 71


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with pytest.raises(VerificationError):
        parse_content(data)


@pytest.mark.parametrize(
    "title", ["", ".", "..", "../a.whl", "/a.whl", "a/b.whl", "a\\b", "a\0b", "a\nb", "\x1b[1m"]
)
def test_titles_that_lead_elsewhere(title: str) -> None:
    assert not is_plain_name(title)
