"""What a hostile registry or layout may hold: refused, each with its reason, before it is used."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreg.errors import KvregError, NetworkError, UsageError, VerificationError
from kvreg.model.digest import sha256_bytes
from kvreg.model.oci import (
    ANNOTATION_REF_NAME,
    ANNOTATION_ROLE,
    ANNOTATION_TITLE,
    EMPTY_BLOB,
    MEDIA_TYPE_INDEX,
    MEDIA_TYPE_MANIFEST,
    MEDIA_TYPE_RUNTIME,
    MEDIA_TYPE_WHEEL,
    Descriptor,
    Index,
    Manifest,
    empty_descriptor,
)
from kvreg.reference import parse_reference
from registry.content import parse_content
from registry.copy import copy
from registry.index import LayoutIndex
from registry.layout import Layout
from registry.referrers import parse_referrers
from registry.store import Store, open_store
from registry.verify import verify
from tests.registry.conftest import MakeRemote
from tests.registry.proxy import Answer, Forward, Proxy, Request
from tests.registry.samples import blob
from tests.support.layouts import add_blob

DATA, LAYER = blob(1000)
OTHER = "sha256:" + "1" * 64


def manifest(**changes: Any) -> dict[str, Any]:
    """A manifest whose blobs are there, changed."""
    return {
        "schemaVersion": 2,
        "mediaType": MEDIA_TYPE_MANIFEST,
        "artifactType": MEDIA_TYPE_RUNTIME,
        "config": empty_descriptor().to_dict(),
        "layers": [LAYER.to_dict()],
        **changes,
    }


def layer(**changes: Any) -> list[dict[str, Any]]:
    return [{**LAYER.to_dict(), **changes}]


def titled(title: str) -> list[dict[str, Any]]:
    annotations = {ANNOTATION_TITLE: title, ANNOTATION_ROLE: "native"}
    return layer(mediaType=MEDIA_TYPE_WHEEL, annotations=annotations)


def deep(levels: int) -> bytes:
    table = json.dumps(manifest(annotations={"x": "DEEP"})).encode()
    return table.replace(b'"DEEP"', b"[" * levels + b"]" * levels)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "size too small": (json.dumps(manifest(layers=layer(size=999))).encode(), "size|bytes"),
    "size too large": (json.dumps(manifest(layers=layer(size=1001))).encode(), "size|bytes"),
    "size below zero": (json.dumps(manifest(layers=layer(size=-1))).encode(), "count of bytes"),
    "size beyond reason": (json.dumps(manifest(layers=layer(size=2**60))).encode(), "bytes"),
    "unknown kind": (
        json.dumps(manifest(mediaType="application/vnd.evil")).encode(), "mediaType",
    ),
    "another schema": (json.dumps(manifest(schemaVersion=1)).encode(), "schemaVersion"),
    "no media type in a layer": (
        json.dumps(manifest(layers=layer(mediaType="text"))).encode(), "media type",
    ),
    "sha512": (
        json.dumps(manifest(layers=layer(digest="sha512:" + "1" * 128))).encode(), "sha256",
    ),
    "md5": (json.dumps(manifest(layers=layer(digest="md5:" + "1" * 32))).encode(), "sha256"),
    "a path as digest": (
        json.dumps(manifest(layers=layer(digest="sha256:../../../etc/passwd"))).encode(), "sha256",
    ),
    "upper-case digest": (
        json.dumps(manifest(layers=layer(digest=LAYER.digest.upper()))).encode(), "sha256",
    ),
    "deep JSON": (deep(100_000), "JSON"),
    "less deep JSON": (deep(200), "annotations"),
    "the same key twice": (
        json.dumps(manifest()).replace("{", '{"config": {}, ', 1).encode(), "same key twice",
    ),
    "too large": (json.dumps(manifest(x=" " * 5_000_000)).encode(), "large|at most"),
    "title up and away": (
        json.dumps(manifest(layers=titled("../../.bashrc"))).encode(), "title leads elsewhere",
    ),
    "title from the root": (
        json.dumps(manifest(layers=titled("/etc/cron.d/x"))).encode(), "title leads elsewhere",
    ),
    "title of another system": (
        json.dumps(manifest(layers=titled("..\\x.whl"))).encode(), "title leads elsewhere",
    ),
    "title that is no text": (
        json.dumps(manifest(layers=titled("a\u0000.whl"))).encode(), "title leads elsewhere",
    ),
    "title that turns round": (
        json.dumps(manifest(layers=titled("a\u202elhw.exe"))).encode(), "title leads elsewhere",
    ),
}  # fmt: skip


def hostile_layout(folder: Path, raw: bytes) -> Layout:
    """A layout whose tag ``evil`` names these bytes, written by someone who checks nothing."""
    digest = add_blob(folder, raw)
    add_blob(folder, DATA)
    add_blob(folder, EMPTY_BLOB)
    entry = {
        "mediaType": MEDIA_TYPE_MANIFEST,
        "digest": digest,
        "size": len(raw),
        "annotations": {ANNOTATION_REF_NAME: "evil"},
    }
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    index = {"schemaVersion": 2, "manifests": [entry]}
    (folder / "index.json").write_text(json.dumps(index))
    return Layout(folder)


def refused(store: Store, destination: Layout, reason: str) -> None:
    """Copying says why not, and leaves nothing that has a name."""
    with pytest.raises((VerificationError, NetworkError)) as caught:
        copy(store, destination, "evil")
    assert re.search(reason, str(caught.value)), str(caught.value)
    if destination.path.exists():
        assert destination.list_tags() == ()


@pytest.mark.parametrize("name", HOSTILE)
def test_in_a_layout(name: str, tmp_path: Path) -> None:
    raw, reason = HOSTILE[name]
    layout = hostile_layout(tmp_path / "theirs", raw)
    refused(layout, Layout(tmp_path / "ours"), reason)
    try:
        report = verify(layout, "evil")
    except VerificationError:
        return
    assert not report.ok


@pytest.mark.parametrize("name", HOSTILE)
def test_in_a_registry(name: str, tmp_path: Path, proxy: Proxy, make_remote: MakeRemote) -> None:
    raw, reason = HOSTILE[name]
    remote = make_remote(proxy.host)
    remote.push_blob(DATA, LAYER)
    remote.push_blob(EMPTY_BLOB, empty_descriptor())
    digest = sha256_bytes(raw)

    def serve(request: Request, forward: Forward) -> Answer:
        headers = {"Content-Type": MEDIA_TYPE_MANIFEST, "Docker-Content-Digest": digest}
        return Answer(200, headers, raw)

    proxy.fail("GET", f"manifests/(evil|{digest})", serve, times=9)
    refused(remote, Layout(tmp_path / "ours"), reason)


# Titles are looked at when something is published or copied: see test_publish.py.
@pytest.mark.parametrize("name", [name for name in HOSTILE if "title" not in name])
def test_we_push_no_such_thing(name: str, tmp_path: Path) -> None:
    raw, reason = HOSTILE[name]
    layout = hostile_layout(tmp_path / "layout", json.dumps(manifest()).encode())
    with pytest.raises(KvregError, match=rf"(?s){reason}|needs a part"):
        layout.push_manifest(raw, tag="ours")
    assert layout.list_tags() == ("evil",)


_LARGE = """
import sys
from pathlib import Path
from kvreg.errors import KvregError
from registry.store import open_store

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024

store = open_store(sys.argv[1])
try:
    store.resolve("evil")
except KvregError as error:
    print(peak(), error)
"""


def peak_mib(reference: str, *reasons: str) -> int:
    """MiB that resolving the tag ``evil`` takes at most; it is refused for one of the reasons."""
    done = subprocess.run(
        [sys.executable, "-c", _LARGE, reference],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2], timeout=60,
    )  # fmt: skip
    peak, _, said = done.stdout.partition(" ")
    assert any(reason in said for reason in reasons), done.stdout
    return int(peak)


def test_a_manifest_of_100_mb_is_not_read(tmp_path: Path, proxy: Proxy) -> None:
    """Refused by its size, whoever tells it, or when too much has come; never held in memory."""
    layout = hostile_layout(tmp_path / "layout", b"{}")
    index = json.loads((layout.path / "index.json").read_bytes())
    large = layout.path / "blobs/sha256" / ("1" * 64)
    with large.open("wb") as stream:
        stream.truncate(100_000_000)
    index["manifests"][0].update(digest=OTHER, size=100_000_000)
    (layout.path / "index.json").write_text(json.dumps(index))
    assert peak_mib(str(layout.location), "too large for a manifest") < 64

    body = b" " * 100_000_000
    answer = Answer(200, {"Content-Type": MEDIA_TYPE_MANIFEST}, body)
    proxy.fail("GET", "manifests/evil", lambda request, forward: answer, times=9)
    assert peak_mib(f"{proxy.host}/large/manifest", "an answer is too large") < 64


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ghcr.io/Vendor/runtimes:x", "lower-case"),
        ("127.0.0.1:5000/UPPER", "registries take lower-case names only: upper"),
        ("ghcr.io/a/../b", "not a valid repository name"),
        ("ghcr.io//a", "not a valid repository name"),
        ("ghcr.io/a:-x", "not a valid tag"),
        ("ghcr.io/a:x@sha512:" + "1" * 128, "not a valid tag"),
        ("ghcr.io/a@sha256:" + "A" * 64, "digest"),
        ("user:secret@ghcr.io/a", "must not hold credentials"),
        ("file:///etc/passwd", "unknown scheme"),
        ("oci-layout:", "needs a path"),
        ("oci-layout:a\0b", "needs a path"),
        ("", "starts with a host"),
    ],
)
def test_references(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_store(text)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


# Fuzzing: a valid document is damaged in some places; it is refused, or well-formed all the same.

_VALID = json.dumps(manifest(subject=LAYER.to_dict(), annotations={"a": "b"})).encode()
_VALID_INDEX = json.dumps(
    {
        "schemaVersion": 2,
        "mediaType": MEDIA_TYPE_INDEX,
        "manifests": [{**LAYER.to_dict(), "annotations": {ANNOTATION_REF_NAME: "x"}}],
    }
).encode()
_PIECES = st.sampled_from(
    [b"", b"{", b"}", b"[", b"]", b'"', b",", b":", b"null", b"-1", b"1e9", b"\\u0000", b"\xff",
     b"sha512:", b"../", b"true", b"NaN", b"\\ud800"]
)  # fmt: skip
_damage = st.lists(
    st.tuples(st.integers(0, 10_000), st.integers(0, 12), _PIECES | st.binary(max_size=4)),
    min_size=1,
    max_size=4,
)


def damaged(raw: bytes, damage: list[tuple[int, int, bytes]]) -> bytes:
    """Replace some bytes at some places."""
    for place, count, piece in damage:
        start = place % (len(raw) + 1)
        raw = raw[:start] + piece + raw[start + count :]
    return raw


@pytest.mark.parametrize(
    ("parse", "valid"),
    [
        (parse_content, _VALID),
        (parse_content, _VALID_INDEX),
        (Manifest.parse, _VALID),
        (Index.parse, _VALID_INDEX),
        (LayoutIndex.parse, _VALID_INDEX),
        (lambda raw: parse_referrers(raw, OTHER), _VALID_INDEX),
    ],
)
def test_damaged_documents(parse: Callable[[bytes], Any], valid: bytes) -> None:
    parse(valid)

    @settings(deadline=None, max_examples=250)
    @given(_damage)
    def check(damage: list[tuple[int, int, bytes]]) -> None:
        try:
            found = parse(damaged(valid, damage))
        except VerificationError as error:
            assert error.what
            return
        for item in getattr(found, "blobs", ()) or getattr(found, "layers", ()):
            assert isinstance(item, Descriptor)
            Descriptor.from_dict(item.to_dict())

    check()


@settings(deadline=None, max_examples=300)
@given(
    _damage,
    st.sampled_from(
        ["ghcr.io/a/b:tag", "http://[::1]:5000/a@" + OTHER, "oci-layout:a/b:tag", "a.b/c"]
    ),
)
def test_damaged_references(damage: list[tuple[int, int, bytes]], text: str) -> None:
    changed = damaged(text.encode(), damage).decode("utf-8", "replace")
    try:
        found = parse_reference(changed)
    except UsageError as error:
        assert error.what
        return
    assert parse_reference(str(found)) == found
