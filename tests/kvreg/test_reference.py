"""References and digests: what is read, what is refused, what is said."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg.errors import UsageError
from kvreg.model.digest import parse_digest, sha256_bytes, sha256_file
from kvreg.reference import LayoutReference, RegistryReference, parse_reference

HEX = "0123456789abcdef" * 4
DIGEST = "sha256:" + HEX

component = st.from_regex(r"\A[a-z0-9]{1,8}((\.|_|__|-{1,3})[a-z0-9]{1,8}){0,2}\Z")
repositories = st.lists(component, min_size=1, max_size=4).map("/".join)
tags = st.none() | st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9._-]{0,20}\Z")
digests = st.none() | st.binary(max_size=8).map(sha256_bytes)
hosts = st.sampled_from(
    ["localhost", "localhost:5000", "127.0.0.1:5000", "[::1]:5000", "registry.example:8443", "a.b"]
)


@given(hosts, repositories, tags, digests, st.booleans())
def test_registry_references_survive_a_round_trip(host, repository, tag, digest, plain):
    reference = RegistryReference(host, repository, tag, digest, plain)
    assert parse_reference(str(reference)) == reference


@given(
    st.from_regex(r"\A[A-Za-z0-9_./@ -]{1,30}\Z").filter(lambda text: str(Path(text)) == text),
    tags,
    digests,
)
def test_layout_references_survive_a_round_trip(path, tag, digest):
    reference = LayoutReference(Path(path), tag, digest)
    assert parse_reference(str(reference)) == reference


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text):
    try:
        parse_reference(text)
    except UsageError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("localhost/foo", True),
        ("127.8.8.8:1/foo", True),
        ("[::1]:5000/foo", True),
        ("https://localhost/foo", False),
        ("registry.example/foo", False),
        ("http://registry.example/foo", True),
        ("localhost.example/foo", False),
        ("127.0.0.1.example/foo", False),
    ],
)
def test_plain_http_is_the_default_for_loopback_alone(text, plain):
    assert parse_reference(text).plain_http is plain


def test_first_part_is_always_the_host():
    reference = parse_reference("localhost/foo")
    assert (reference.host, reference.repository) == ("localhost", "foo")


def test_a_colon_in_a_directory_belongs_to_the_path():
    assert parse_reference("oci-layout:a:b/c") == LayoutReference(Path("a:b/c"))
    assert parse_reference("oci-layout:a:b/c:t") == LayoutReference(Path("a:b/c"), "t")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ghcr.example/Owner/name", "owner/name"),
        ("owner/name", "bare word"),
        ("ftp://host.example/name", "scheme"),
        ("host.example", "repository"),
        ("host.example/a//b", "repository"),
        ("host.example/a:.b", "tag"),
        ("host.example:99999/a", "host"),
        ("host.example/a@sha256:12", "digest"),
        ("oci-layout:", "path"),
        ("oci-layout:dir:-bad", "tag"),
        ("", "host"),
    ],
)
def test_what_is_wrong_is_said(text, said):
    with pytest.raises(UsageError, match=said):
        parse_reference(text)


def test_credentials_are_refused_and_not_repeated():
    with pytest.raises(UsageError, match="credentials") as caught:
        parse_reference("https://me:s3cret@host.example/name")
    assert "s3cret" not in str(caught.value)


def test_digest_of_bytes_and_of_a_file_agree(tmp_path):
    data = b"x" * 3_000_000
    (tmp_path / "file").write_bytes(data)
    seen = []
    assert sha256_file(tmp_path / "file", seen.append) == sha256_bytes(data)
    assert sum(seen) == len(data)


@pytest.mark.parametrize("text", ["", HEX, "sha256:" + HEX[:-1], "sha512:" + HEX, DIGEST.upper()])
def test_malformed_digests_are_refused(text):
    with pytest.raises(UsageError):
        parse_digest(text)
    assert parse_digest(DIGEST) == HEX
