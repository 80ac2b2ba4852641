"""Garbage of layouts: writers at the same time, collectors that die, damage, other tools."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvreg.errors import ContractError, NotFoundError, VerificationError
from kvreg.model.oci import EMPTY_BLOB, Descriptor, Manifest, empty_descriptor
from registry.attach import attach
from registry.deletion import delete
from registry.files import INCOMING_PREFIX
from registry.garbage import collect_garbage, find_garbage
from registry.layout import Layout
from registry.referrers import fallback_tag
from registry.verify import verify
from tests.registry.samples import blob, push_artifact

ROOT = Path(__file__).parents[2]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "layout")


def age(layout: Layout, days: float = 2) -> None:
    """Make every blob that old, and what killed writers left as well."""
    then = time.time() - days * 86400
    left = layout.path.glob(f"{INCOMING_PREFIX}*")
    for path in (*left, *(path for _, path in layout.blob_files())):
        os.utime(path, (then, then))


def digests(layout: Layout) -> set[str]:
    return {digest for digest, _ in layout.blob_files()}


def test_a_moved_tag_leaves_garbage_and_attestations_go_with_their_subject(layout: Layout) -> None:
    old = push_artifact(layout, "moving").descriptor()
    sbom = attach(layout, old, "application/x-sbom", b"old", "sbom.json")
    attach(layout, sbom, "application/x-signature", b"sig", "signature")
    new = push_artifact(layout, "moving", seed=2).descriptor()
    kept = attach(layout, new, "application/x-sbom", b"new", "sbom.json")
    age(layout)
    plan = find_garbage(layout)
    assert len(plan.manifests) == 3
    assert old.digest in {item.digest for item in plan.manifests}
    assert layout.resolve(old.digest) == old
    done = collect_garbage(layout)
    assert (done.deleted, done.blobs) == (True, plan.blobs)
    assert layout.resolve(old.digest) is None
    assert [item.digest for item in layout.referrers(new.digest)] == [kept.digest]
    assert verify(layout, "moving").ok
    # manifest, layer, {}; attestation and its file
    assert len(digests(layout)) == 5


def test_a_tagged_attestation_keeps_its_subject(layout: Layout) -> None:
    subject = push_artifact(layout).descriptor()
    sbom = attach(layout, subject, "application/x-sbom", b"s", "sbom.json")
    layout.tag(sbom, "sbom")
    age(layout)
    collect_garbage(layout)
    assert layout.resolve(subject.digest) == subject


def test_signatures_of_cosigns_go_with_what_was_signed(layout: Layout) -> None:
    old = push_artifact(layout).descriptor()
    new = push_artifact(layout, "one", seed=2).descriptor()
    elsewhere = "sha256:" + "0" * 64
    tags = [f"{fallback_tag(digest)}.sig" for digest in (old.digest, new.digest, elsewhere)]
    for number, tag in enumerate(tags):
        push_artifact(layout, tag, seed=20 + number)
    age(layout)
    collect_garbage(layout)
    assert set(layout.list_tags()) == {"one", *tags[1:]}


def test_what_is_young_stays(layout: Layout) -> None:
    push_artifact(layout)
    layout.push_blob(*blob(10, seed=9))
    found = collect_garbage(layout)
    assert (found.manifests, found.blobs, found.young) == ((), (), 4)
    age(layout)
    assert len(collect_garbage(layout).blobs) == 4
    assert digests(layout) == set()


def test_a_push_makes_what_it_finds_young_again(layout: Layout) -> None:
    data, descriptor = blob(1000)
    layout.push_blob(data, descriptor)
    age(layout)
    assert len(find_garbage(layout).blobs) == 1
    assert not layout.push_blob(data, descriptor)
    assert find_garbage(layout).blobs == ()


def test_a_manifest_whose_blobs_were_collected_is_refused(layout: Layout) -> None:
    data, layer = blob(1000)
    manifest = Manifest(empty_descriptor(), (layer,))
    layout.push_blob(EMPTY_BLOB, manifest.config)
    layout.push_blob(data, layer)
    collect_garbage(layout, older_than=0)
    with pytest.raises(NotFoundError, match="needs a part"):
        layout.push_manifest(manifest.to_bytes(), tag="one")
    assert layout.list_tags() == ()


def test_a_damaged_manifest_stops_the_collection_until_it_is_deleted(layout: Layout) -> None:
    push_artifact(layout, "one")
    bad = push_artifact(layout, "two", seed=2).descriptor()
    age(layout)
    dict(layout.blob_files())[bad.digest].write_bytes(b"{}")
    before = digests(layout)
    with pytest.raises(VerificationError, match="damaged manifest") as caught:
        collect_garbage(layout)
    assert "registry delete" in (caught.value.remedy or "")
    assert digests(layout) == before
    delete(layout, "two")
    delete(layout, bad.digest)
    collect_garbage(layout)
    assert layout.list_tags() == ("one",)
    assert verify(layout, "one").ok


def test_what_others_keep_in_a_layout_stays(layout: Layout) -> None:
    """Entries of kinds that we cannot read keep all that they mention; other files stay."""
    layout.prepare()
    data, used = blob(100, seed=4)
    layout.push_blob(data, used)
    raw = json.dumps({"blobs": [{"digest": used.digest}]}).encode()
    strange = Descriptor.of_bytes("application/vnd.example.manifest", raw)
    layout.push_blob(raw, strange)
    named = push_artifact(layout, seed=5).descriptor()
    index = json.loads((layout.path / "index.json").read_bytes())
    index["manifests"] = [
        strange.to_dict(),
        {**named.to_dict(), "annotations": {"io.containerd.image.name": "x"}},
        {"mediaType": "a/b", "digest": "sha512:" + "1" * 128, "size": 1},
    ]
    (layout.path / "index.json").write_text(json.dumps(index))
    (layout.path / "blobs" / "sha512").mkdir()
    for name in ("sha256/README", "sha512/abc"):
        (layout.path / "blobs" / name).write_text("x")
    layout.push_blob(*blob(50, seed=6))
    age(layout)
    assert len(collect_garbage(layout).blobs) == 1
    assert used.digest in digests(layout)
    assert verify(layout, named.digest).ok
    assert json.loads((layout.path / "index.json").read_bytes()) == index
    assert (layout.path / "blobs" / "sha512" / "abc").exists()


def test_an_index_that_was_copied_in_part(layout: Layout) -> None:
    from kvreg.model.oci import Index

    child = push_artifact(layout).descriptor()
    absent = Descriptor(child.media_type, "sha256:" + "1" * 64, 5)
    raw = Index((child, absent)).to_bytes()
    parent = Descriptor.of_bytes("application/vnd.oci.image.index.v1+json", raw)
    layout.push_blob(raw, parent)
    path = layout.path / "index.json"
    table = json.loads(path.read_bytes())
    table["manifests"] = [parent.to_dict()]
    path.write_text(json.dumps(table))
    layout.tag(parent, "many")
    age(layout)
    assert collect_garbage(layout).blobs == ()
    with pytest.raises(ContractError, match="part of another manifest"):
        layout.delete(child.digest)


def test_a_directory_that_is_no_layout(tmp_path: Path) -> None:
    for work in (find_garbage, collect_garbage):
        with pytest.raises(NotFoundError, match="is not an OCI image layout"):
            work(Layout(tmp_path / "absent"))


_COLLECTOR = """
import sys
import time
from pathlib import Path
from registry.garbage import collect_garbage
from registry.layout import Layout

layout = Layout(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    collect_garbage(layout, older_than=3600)
    time.sleep(0.02)
"""

_PUBLISHER = """
import sys
from pathlib import Path
from registry.attach import attach
from registry.layout import Layout
from tests.registry.samples import push_artifact

layout = Layout(Path(sys.argv[1]))
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    # The same few layers again and again, old ones among them, under a tag that moves.
    found = push_artifact(layout, seed=number % 3, size=20_000).descriptor()
    attach(layout, found, "application/x-sbom", b"%d" % number, "sbom.json")
    layout.tag(found, f"tag-{number % 2}")
    layout.tag(found, f"kept-{number}")
"""


_NURSERY = """
import os
import sys
from pathlib import Path
from registry.garbage import collect_garbage
from registry.layout import Layout
from tests.registry.test_garbage import die_at

# A fork is at work at once, unlike a new interpreter, so that kills find it there.
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        try:
            if int(line) >= 0:
                die_at(int(line))
            collect_garbage(Layout(Path(sys.argv[1])))
        finally:
            os._exit(0)
    print(child, flush=True)
    # The child's number stays its own until the other side has sent its signal.
    sys.stdin.readline()
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


def litter(layout: Layout, count: int, seed: int) -> None:
    """Artifacts that nothing names, put there without the time that durable writes take."""
    index = layout.index()
    blobs = layout.path / "blobs" / "sha256"
    for number in range(seed, seed + count):
        data, layer = blob(500, seed=number)
        manifest = Manifest(layer, (layer,))
        for digest, raw in (
            (layer.digest, data),
            (manifest.descriptor().digest, manifest.to_bytes()),
        ):
            (blobs / digest.removeprefix("sha256:")).write_bytes(raw)
        index = index.add(manifest.descriptor())
    with layout.exclusive():
        layout.replace_index(index)


def run(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def test_a_collection_beside_writers_takes_nothing_of_theirs(layout: Layout) -> None:
    for seed in range(3):
        push_artifact(layout, seed=seed, size=20_000)
    age(layout)
    collector = run(_COLLECTOR, layout.path)
    try:
        assert collector.stdout is not None
        collector.stdout.readline()
        writers = [run(_PUBLISHER, layout.path, start, start + 8) for start in (0, 8)]
        assert [writer.wait(120) for writer in writers] == [0, 0]
        assert collector.poll() is None
    finally:
        collector.kill()
        collector.communicate()
    assert {f"kept-{number}" for number in range(16)} <= set(layout.list_tags())
    for tag in layout.list_tags():
        assert verify(layout, tag).ok
    assert sum(len(layout.referrers(d)) for d in digests(layout)) == 16


@pytest.mark.parametrize("kill", ["at each step", "after a time"])
def test_a_collection_may_die_at_any_time(layout: Layout, kill: str) -> None:
    """What is named is whole after each kill, and the next collection completes."""
    for number in range(3):
        subject = push_artifact(layout, f"kept-{number}", seed=number).descriptor()
        attach(layout, subject, "application/x-sbom", b"s", "sbom.json")
    age(layout)
    expected = digests(layout)
    nursery = run(_NURSERY, layout.path)
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    for attempt in range(30):
        litter(layout, 12, seed=1000 * (attempt + 1))
        age(layout)
        nursery.stdin.write(f"{attempt if kill == 'at each step' else -1}\n")
        nursery.stdin.flush()
        collector = int(nursery.stdout.readline())
        if kill == "after a time":
            time.sleep(0.0005 * attempt)
            os.kill(collector, signal.SIGKILL)
        nursery.stdin.write("gone\n")
        nursery.stdin.flush()
        assert nursery.stdout.readline() == "gone\n"
        for tag in layout.list_tags():
            assert verify(layout, tag).ok
        for entry in layout.index().descriptors():
            assert verify(layout, entry.digest, False).ok, "what is listed is whole"
        if kill == "at each step":
            assert (len(digests(layout)) > len(expected)) == (attempt < 25)
        age(layout)
        collect_garbage(layout)
        assert digests(layout) == expected
        assert len(layout.index().entries) == 6
        assert not list(layout.path.glob(f"{INCOMING_PREFIX}*"))
    nursery.stdin.close()
    assert nursery.wait(10) == 0
    nursery.stdout.close()


def die_at(step: int) -> None:
    """Let this process kill itself instead of its `step`-th rename or removal of a file."""
    left = itertools.count(-step)

    def dying(method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return method(*arguments, **options)

        return wrapped

    for name in ("replace", "unlink"):
        setattr(Path, name, dying(getattr(Path, name)))
