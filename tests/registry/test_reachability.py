"""What is kept, on random graphs of manifests, tags and referrers: as nodes, and in layouts."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvreg.model.digest import sha256_bytes
from kvreg.model.oci import (
    ANNOTATION_REF_NAME,
    MEDIA_TYPE_INDEX,
    MEDIA_TYPE_MANIFEST,
    Descriptor,
    Index,
    Manifest,
)
from registry.garbage import collect_garbage, find_garbage
from registry.layout import Layout
from registry.reachability import Node, reachable
from tests.registry.samples import OCTETS

_names = st.sampled_from("abcdefgh")
_nodes = st.lists(
    st.builds(Node, _names, st.frozensets(_names, max_size=3), st.none() | _names),
    max_size=8,
    unique_by=lambda node: node.digest,
)


def closure(roots: set[str], nodes: list[Node]) -> set[str]:
    """The same by the slowest way: apply every rule until nothing changes."""
    kept = set(roots)
    while True:
        before = set(kept)
        for node in nodes:
            if node.digest in kept:
                kept |= node.below | ({node.subject} if node.subject else set())
            if node.subject in kept:
                kept.add(node.digest)
        if kept == before:
            return kept


@settings(deadline=None)
@given(st.sets(_names, max_size=3), _nodes)
def test_reachable_is_the_closure_of_its_rules(roots: set[str], nodes: list[Node]) -> None:
    assert reachable(roots, nodes) == closure(roots, nodes)


@settings(deadline=None)
@given(st.sets(_names, max_size=3), _nodes, st.sets(_names, max_size=3))
def test_more_roots_keep_more(roots: set[str], nodes: list[Node], others: set[str]) -> None:
    assert reachable(roots, nodes) <= reachable(roots | others, nodes)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """The files of a layout by digest, and the entries of its index.

    Manifests share layers, lie below indexes, are about others, and are tagged or listed or
    neither; there are blobs that nothing names.
    """
    files: dict[str, bytes] = {}
    made: list[Descriptor] = []

    def add(media_type: str, raw: bytes) -> Descriptor:
        found = Descriptor.of_bytes(media_type, raw)
        files[found.digest] = raw
        return found

    pool = [add(OCTETS, b"blob %d" % number) for number in range(6)]
    for number in range(draw(st.integers(1, 7))):
        subject = draw(st.none() | st.sampled_from(made)) if made else None
        notes = {"number": str(number)}
        if made and draw(st.booleans()):
            children = draw(st.lists(st.sampled_from(made), max_size=3, unique=True))
            made.append(add(MEDIA_TYPE_INDEX, Index(tuple(children), notes).to_bytes()))
        else:
            config, *layers = draw(st.lists(st.sampled_from(pool), min_size=1, max_size=4))
            manifest = Manifest(config, tuple(layers), None, notes, subject)
            made.append(add(MEDIA_TYPE_MANIFEST, manifest.to_bytes()))
    entries = []
    for number, item in enumerate(made):
        how = draw(st.sampled_from(["tagged", "listed", "absent"]))
        if how != "absent":
            names = {ANNOTATION_REF_NAME: f"tag-{number}"} if how == "tagged" else {}
            entries.append({**item.to_dict(), **({"annotations": names} if names else {})})
    return files, entries


def expected(files: dict[str, bytes], entries: list[dict[str, Any]]) -> set[str]:
    """What must stay, from the JSON alone. Only what the index lists is an attestation."""
    kept = {item["digest"] for item in entries if "annotations" in item}
    listed = {item["digest"] for item in entries}
    known = set(listed)
    while True:
        for digest in list(known):
            # Whatever a known manifest leads to is known too.
            mentioned = _mentions(files.get(digest, b""))
            known |= {found for found in mentioned if _is_json(files, found)}
        before = set(kept)
        for digest in known:
            if digest in kept:
                kept |= _mentions(files.get(digest, b""))
            if digest in listed and _subject(files.get(digest, b"")) in kept:
                kept.add(digest)
        if kept == before:
            return kept


def _mentions(raw: bytes) -> set[str]:
    return set(re.findall(r"sha256:[0-9a-f]{64}", raw.decode()))


def _is_json(files: dict[str, bytes], digest: str) -> bool:
    return files.get(digest, b"").startswith(b"{")


def _subject(raw: bytes) -> str | None:
    return json.loads(raw).get("subject", {}).get("digest") if raw.startswith(b"{") else None


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=layouts())
def test_a_collection_keeps_what_is_reached_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory,
    content: tuple[dict[str, bytes], list[dict[str, Any]]],
) -> None:
    files, entries = content
    root = tmp_path_factory.mktemp("layout")
    write(root, files, entries)
    layout = Layout(root)
    stays = expected(files, entries)
    plan = find_garbage(layout, 0)
    assert {blob.digest for blob in plan.blobs} == files.keys() - stays
    assert {path.name for path in (root / "blobs/sha256").iterdir()} == {
        digest.removeprefix("sha256:") for digest in files
    }, "a dry run changes nothing"
    done = collect_garbage(layout, 0)
    assert done.blobs == plan.blobs
    assert {digest for digest, _ in layout.blob_files()} == stays & files.keys()
    for digest, path in layout.blob_files():
        assert sha256_bytes(path.read_bytes()) == digest
    after = json.loads((root / "index.json").read_bytes())["manifests"]
    assert after == [item for item in entries if item["digest"] in stays]
    again = find_garbage(layout, 0)
    assert (again.manifests, again.blobs) == ((), ())


def write(root: Path, files: dict[str, bytes], entries: list[dict[str, Any]]) -> None:
    """A layout as another tool would write it, without the time that a durable write takes."""
    blobs = root / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for digest, raw in files.items():
        (blobs / digest.removeprefix("sha256:")).write_bytes(raw)
    (root / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (root / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
