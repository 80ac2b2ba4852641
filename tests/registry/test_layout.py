"""Layouts: format, verification, concurrent writers, writers that die, read-only copies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreg.errors import ContractError, NotFoundError, StorageError, VerificationError
from kvreg.model.oci import (
    ANNOTATION_REF_NAME,
    Descriptor,
    Manifest,
    empty_descriptor,
)
from registry.files import INCOMING_PREFIX, locked
from registry.index import LayoutIndex
from registry.layout import Layout
from registry.verify import verify
from tests.registry.samples import blob, push_artifact, read

DIGEST = "sha256:" + "0" * 64


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "layout")


def blob_file(layout: Layout, digest: str) -> Path:
    return layout.path / "blobs" / "sha256" / digest.removeprefix("sha256:")


def test_the_three_kinds_of_file(layout: Layout) -> None:
    manifest = push_artifact(layout, "one")
    marker = json.loads((layout.path / "oci-layout").read_bytes())
    index = json.loads((layout.path / "index.json").read_bytes())
    assert marker == {"imageLayoutVersion": "1.0.0"}
    descriptor = manifest.descriptor()
    assert index["schemaVersion"] == 2
    assert index["manifests"] == [
        {**descriptor.to_dict(), "annotations": {ANNOTATION_REF_NAME: "one"}}
    ]
    assert blob_file(layout, descriptor.digest).read_bytes() == manifest.to_bytes()
    assert not list(layout.path.glob(f"{INCOMING_PREFIX}*"))


def test_resolve_and_read_back(layout: Layout) -> None:
    manifest = push_artifact(layout, "one")
    descriptor = manifest.descriptor()
    assert layout.resolve("one") == descriptor
    assert layout.resolve(descriptor.digest) == descriptor
    assert layout.resolve("two") is None
    assert layout.resolve(DIGEST) is None
    assert layout.fetch_manifest(descriptor.digest) == manifest.to_bytes()
    assert read(layout, manifest.layers[0]) == blob(1000)[0]


def test_a_directory_that_is_no_layout(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="is not an OCI image layout"):
        Layout(tmp_path / "absent").resolve("one")
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(StorageError, match=r"neither .* nor empty") as caught:
        Layout(tmp_path).prepare()
    assert caught.value.found == "precious.txt"
    with pytest.raises((NotFoundError, StorageError)):
        Layout(tmp_path / "precious.txt").prepare()


@pytest.mark.parametrize("raw", [b"{", b"[]", b"{}", b'{"imageLayoutVersion":"9.0.0"}'])
def test_a_broken_marker(raw: bytes, layout: Layout) -> None:
    layout.prepare()
    (layout.path / "oci-layout").write_bytes(raw)
    with pytest.raises(VerificationError):
        layout.list_tags()


class TestVerification:
    @pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 1000, b"x" * 1001])
    def test_a_corrupt_blob(self, damage: bytes, layout: Layout, tmp_path: Path) -> None:
        layer = push_artifact(layout, "one").layers[0]
        blob_file(layout, layer.digest).write_bytes(damage)
        with pytest.raises(VerificationError):
            read(layout, layer)
        with pytest.raises(VerificationError):
            layout.fetch_blob(layer, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_a_corrupt_manifest(self, layout: Layout) -> None:
        digest = push_artifact(layout, "one").descriptor().digest
        path = blob_file(layout, digest)
        path.write_bytes(path.read_bytes().replace(b"x-test", b"x-evil"))
        with pytest.raises(VerificationError):
            layout.resolve("one")

    def test_a_wrong_size_in_the_index(self, layout: Layout) -> None:
        push_artifact(layout, "one")
        path = layout.path / "index.json"
        index = json.loads(path.read_bytes())
        index["manifests"][0]["size"] += 1
        path.write_text(json.dumps(index))
        with pytest.raises(VerificationError, match="wrong size"):
            layout.resolve("one")

    def test_a_push_heals_what_went_bad(self, layout: Layout) -> None:
        data, descriptor = blob(1000)
        assert layout.push_blob(data, descriptor)
        assert not layout.push_blob(data, descriptor)
        blob_file(layout, descriptor.digest).write_bytes(b"\0" * 1000)
        assert layout.push_blob(data, descriptor)
        assert read(layout, descriptor) == data

    def test_wrong_bytes_are_never_stored(self, layout: Layout) -> None:
        data, descriptor = blob(1000)
        for wrong in (data[:-1], data + b"x", b"x" * 1000):
            with pytest.raises(VerificationError):
                layout.push_blob(wrong, descriptor)
        assert not layout.has_blob(descriptor)
        assert not list(layout.path.glob(f"{INCOMING_PREFIX}*"))

    def test_a_manifest_without_its_blobs_is_refused(self, layout: Layout) -> None:
        layout.prepare()
        manifest = Manifest(empty_descriptor(), (blob(10)[1],))
        with pytest.raises(NotFoundError, match="needs a part"):
            layout.push_manifest(manifest.to_bytes(), tag="one")
        assert layout.list_tags() == ()

    def test_something_else_of_a_blobs_name(self, layout: Layout) -> None:
        layer = push_artifact(layout, "one").layers[0]
        path = blob_file(layout, layer.digest)
        path.unlink()
        os.mkfifo(path)
        assert not layout.has_blob(layer)
        with pytest.raises(NotFoundError):
            read(layout, layer)


class TestTags:
    def test_moving_keeps_what_was_there(self, layout: Layout) -> None:
        first = push_artifact(layout, "moving").descriptor()
        second = push_artifact(layout, "moving", seed=2).descriptor()
        assert layout.resolve("moving") == second
        assert layout.resolve(first.digest) == first
        assert first.digest in (layout.path / "index.json").read_text()

    def test_a_tag_that_must_not_move(self, layout: Layout) -> None:
        first = push_artifact(layout, "fixed").descriptor()
        second = push_artifact(layout, seed=2).descriptor()
        layout.tag(first, "fixed", move=False)
        with pytest.raises(ContractError, match="never moved") as caught:
            layout.tag(second, "fixed", move=False)
        assert caught.value.found == first.digest
        assert layout.resolve("fixed") == first

    def test_two_names_and_no_repetition(self, layout: Layout) -> None:
        descriptor = push_artifact(layout).descriptor()
        for name in ("b", "a", "b"):
            layout.tag(descriptor, name)
        assert layout.list_tags() == ("a", "b")
        assert len(json.loads((layout.path / "index.json").read_bytes())["manifests"]) == 2

    def test_tagging_what_is_absent(self, layout: Layout) -> None:
        layout.prepare()
        with pytest.raises(NotFoundError):
            layout.tag(Descriptor("a/b", DIGEST, 3), "one")


def test_referrers_are_found_in_the_index(layout: Layout) -> None:
    subject = push_artifact(layout, "one").descriptor()
    data, layer = blob(20, seed=3)
    layout.push_blob(data, layer)
    notes = {"note": "x"}
    referrer = Manifest(empty_descriptor(), (layer,), "application/x-sbom", notes, subject)
    layout.push_manifest(referrer.to_bytes())
    layout.push_manifest(referrer.to_bytes())
    expected = referrer.descriptor(notes)
    assert layout.referrers(subject.digest) == (expected,)
    assert layout.referrers(subject.digest, "application/x-sbom") == (expected,)
    assert layout.referrers(subject.digest, "application/x-other") == ()
    assert layout.referrers(expected.digest) == ()
    assert layout.list_tags() == ("one",)


class TestForeignEntries:
    FOREIGN = (
        {"mediaType": "application/x", "digest": "sha512:" + "1" * 128, "size": 3, "x": [1]},
        {"mediaType": "application/vnd.example", "digest": DIGEST, "size": 0},
        {"anything": {"else": None}},
    )

    def test_they_survive_every_change(self, layout: Layout) -> None:
        layout.prepare()
        path = layout.path / "index.json"
        index = {
            "schemaVersion": 2,
            "annotations": {"a": "b"},
            "y": 1,
            "manifests": list(self.FOREIGN),
        }
        path.write_text(json.dumps(index))
        subject = push_artifact(layout, "one").descriptor()
        push_artifact(layout, "one", seed=2)
        assert layout.referrers(subject.digest) == ()
        after = json.loads(path.read_bytes())
        assert after["manifests"][:3] == list(self.FOREIGN)
        assert (after["annotations"], after["y"]) == ({"a": "b"}, 1)

    def test_annotations_of_others_survive_a_moved_tag(self) -> None:
        entry = {
            **Descriptor("a/b", DIGEST, 1).to_dict(),
            "platform": {"os": "linux"},
            "annotations": {ANNOTATION_REF_NAME: "one", "keep": "me"},
        }
        other = Descriptor("a/b", "sha256:" + "1" * 64, 1)
        kept = LayoutIndex((entry,)).tag(other, "one").entries[0]
        assert kept == {**entry, "annotations": {"keep": "me"}}


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=10,
)
_name = st.sampled_from(["a", "b", "c"])
_digest = st.sampled_from(["sha256:" + digit * 64 for digit in "123"])
_entry = st.builds(
    lambda digest, name, extra: {
        "mediaType": "a/b",
        "digest": digest,
        "size": 1,
        **({"annotations": {ANNOTATION_REF_NAME: name}} if name else {}),
        **extra,
    },
    _digest,
    st.none() | _name,
    st.dictionaries(st.sampled_from(["x", "platform"]), _json, max_size=1),
)


class TestIndexProperties:
    @settings(deadline=None)
    @given(st.binary(max_size=200) | _json.map(lambda value: json.dumps(value).encode()))
    def test_any_bytes_are_an_index_or_an_error(self, raw: bytes) -> None:
        try:
            index = LayoutIndex.parse(raw)
        except VerificationError:
            return
        assert LayoutIndex.parse(index.to_bytes()) == index

    @settings(deadline=None)
    @given(st.lists(_entry | _json.map(lambda value: {"z": value}), max_size=6))
    def test_reading_and_writing_lose_nothing(self, entries: list[dict]) -> None:
        raw = json.dumps({"schemaVersion": 2, "k": 1, "manifests": entries}).encode()
        again = json.loads(LayoutIndex.parse(raw).to_bytes())
        assert again == json.loads(raw)

    @settings(deadline=None)
    @given(st.lists(_entry, max_size=6), _digest, _name)
    def test_a_tag_names_one_thing_and_nothing_is_lost(
        self, entries: list[dict], digest: str, tag: str
    ) -> None:
        before = LayoutIndex(tuple(entries))
        after = before.tag(Descriptor("a/b", digest, 1), tag)
        found = after.tagged(tag)
        assert found is not None
        assert found.digest == digest
        assert {e["digest"] for e in after.entries} == {e["digest"] for e in entries} | {digest}
        assert set(before.tags()) | {tag} == set(after.tags())
        assert after.tag(found, tag) == after
        extras = [e for e in entries if e.keys() & {"x", "platform"}]
        assert sum(bool(e.keys() & {"x", "platform"}) for e in after.entries) >= len(
            {json.dumps(e, sort_keys=True) for e in extras if e.get("annotations") is None}
        )


_WRITER = """
import sys
from pathlib import Path
from registry.layout import Layout
from tests.registry.samples import push_artifact

layout = Layout(Path(sys.argv[1]))
start, count = int(sys.argv[2]), int(sys.argv[3])
for number in range(start, start + count):
    push_artifact(layout, f"tag-{number}", seed=number, size=200_000)
    print(number, flush=True)
"""


def writer(layout: Layout, start: int, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(layout.path), str(start), str(count)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def test_two_writers_lose_nothing(layout: Layout) -> None:
    count = 40
    processes = [writer(layout, start, count) for start in (0, count)]
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert layout.list_tags() == tuple(sorted(f"tag-{number}" for number in range(2 * count)))
    assert all(verify(layout, tag).ok for tag in layout.list_tags())


def test_a_writer_may_die_at_any_time(layout: Layout) -> None:
    """Killed at points that differ from run to run: the layout is valid after each."""
    done: set[str] = set()
    for run in range(12):
        process = writer(layout, run * 1000, 1000)
        assert process.stdout is not None
        first = process.stdout.readline()
        time.sleep(0.003 * run)
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate(timeout=10)
        done |= {f"tag-{line}" for line in (first + rest).split()}
        assert done <= set(layout.list_tags())
    for tag in layout.list_tags():
        assert verify(layout, tag).ok
    push_artifact(layout, "after")
    assert verify(layout, "after").ok


def test_what_the_dead_left_is_removed_in_time(layout: Layout) -> None:
    layout.prepare()
    old, new = (layout.path / f"{INCOMING_PREFIX}{name}" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    push_artifact(layout, "one")
    assert not old.exists()
    assert new.exists()


def test_a_lock_that_is_held_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        locked(path),
        pytest.raises(StorageError, match="another process holds the lock"),
        locked(path, timeout=0.05),
    ):
        pass
    with locked(path, timeout=0.05):
        pass


_READ_ONLY = """
import sys
from pathlib import Path
from kvreg.errors import StorageError
from registry.layout import Layout
from registry.verify import verify
from tests.registry.samples import push_artifact

layout = Layout(Path(sys.argv[1]))
print(verify(layout, "one").ok)
try:
    push_artifact(layout, "two", seed=2)
except StorageError as error:
    print(error.what)
"""


def test_a_layout_on_a_read_only_file_system(layout: Layout) -> None:
    push_artifact(layout, "one")
    mount = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "sh",
            "-c",
            mount,
            "sh",
            str(layout.path),
            sys.executable,
            _READ_ONLY,
        ],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    if done.returncode != 0 and ("unshare" in done.stderr or "mount" in done.stderr):
        pytest.skip("this machine does not let us mount")
    assert done.stdout.splitlines() == ["True", f"{layout.location} cannot be written to"]


def test_reading_writes_nothing(layout: Layout) -> None:
    push_artifact(layout, "one")
    before = {path: path.stat().st_mtime_ns for path in layout.path.rglob("*")}
    assert verify(layout, "one").ok
    layout.list_tags()
    layout.referrers(DIGEST)
    assert {path: path.stat().st_mtime_ns for path in layout.path.rglob("*")} == before


def test_a_full_disk_leaves_nothing(layout: Layout, tmp_path: Path) -> None:
    """A limit on the file size stands for the full disk: the write fails half-way."""
    script = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from registry.layout import Layout\n"
        "from tests.registry.samples import blob\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: Layout(Path(sys.argv[1])).push_blob(*blob(3_000_000))\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    layout.prepare()
    done = subprocess.run(
        [sys.executable, "-c", script, str(layout.path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    assert done.stdout.startswith("StorageError could not write a blob")
    assert not list(layout.path.glob(f"{INCOMING_PREFIX}*"))
    assert not list((layout.path / "blobs" / "sha256").iterdir())
