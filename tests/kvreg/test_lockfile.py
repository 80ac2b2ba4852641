"""``kvreg.lock``: the same content is the same bytes, and what is malformed is said."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg.errors import NotFoundError, VerificationError
from kvreg.home import Home
from kvreg.lockfile import Locked, Lockfile, layer_digests, lock_profile, read_lockfile
from kvreg.model.oci import ANNOTATION_TITLE, Descriptor, Manifest

DIGESTS = st.from_regex(r"\Asha256:[0-9a-f]{64}\Z")
ENTRIES = st.builds(
    Locked, DIGESTS, DIGESTS, st.dictionaries(st.text(min_size=1, max_size=9), DIGESTS, max_size=3)
)
FILES = st.builds(Lockfile, st.dictionaries(st.text(min_size=1, max_size=9), ENTRIES, max_size=3))


def digest(number):
    return f"sha256:{number:064x}"


def entry(number, **blobs):
    return Locked(digest(number), digest(number + 1), blobs or {"a.whl": digest(number + 2)})


@given(FILES)
def test_a_lock_survives_a_round_trip_and_is_canonical(lock):
    raw = lock.to_bytes()
    again = Lockfile.parse(raw, "kvreg.lock")
    assert again == lock
    assert again.to_bytes() == raw
    reordered = Lockfile(dict(reversed(list(lock.entries.items()))))
    assert reordered.to_bytes() == raw


@given(st.binary(max_size=200))
def test_any_bytes_are_a_lock_or_an_error(raw):
    try:
        lock = Lockfile.parse(raw, "kvreg.lock")
    except VerificationError as error:
        assert "kvreg.lock" in str(error)
    else:
        assert Lockfile.parse(lock.to_bytes(), "again") == lock


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree.update(schema=2),
        lambda tree: tree.update(more=1),
        lambda tree: tree.update(profiles=[]),
        lambda tree: tree["profiles"]["demo"].update(manifest="sha256:1"),
        lambda tree: tree["profiles"]["demo"].pop("blobs"),
        lambda tree: tree["profiles"]["demo"]["blobs"].update(x=5),
        lambda tree: tree["profiles"].update(other="x"),
    ],
)
def test_what_is_malformed_is_refused(change):
    tree = json.loads(Lockfile({"demo": entry(1)}).to_bytes())
    change(tree)
    with pytest.raises(VerificationError, match=r"kvreg\.lock.* is malformed"):
        Lockfile.parse(json.dumps(tree).encode(), "kvreg.lock")


def test_a_conflict_of_two_branches_is_said():
    raw = b"<<<<<<< ours\n" + Lockfile({"demo": entry(1)}).to_bytes()
    with pytest.raises(VerificationError, match="not valid JSON"):
        Lockfile.parse(raw, "kvreg.lock")


def test_a_change_of_one_profile_is_a_change_of_its_lines():
    old = Lockfile({"demo": entry(1), "other": entry(5)})
    new = old.with_entry("demo", Locked(digest(1), digest(9), {"a.whl": digest(3)}))
    changed = set(old.to_bytes().splitlines()) ^ set(new.to_bytes().splitlines())
    assert changed == {b'      "manifest": "%s",' % digest(n).encode() for n in (2, 9)}


def test_writing_keeps_other_entries_and_leaves_no_temporary_file(tmp_path):
    home, path = Home(tmp_path / "home"), tmp_path / "kvreg.lock"
    assert lock_profile(path, "demo", entry(1), home)
    assert lock_profile(path, "other", entry(5), home)
    before = path.stat().st_ino
    assert not lock_profile(path, "demo", entry(1), home)
    assert path.stat().st_ino == before
    assert read_lockfile(path) == Lockfile({"demo": entry(1), "other": entry(5)})
    assert {item.name for item in tmp_path.iterdir()} == {"home", "kvreg.lock"}


def test_writers_at_once_all_get_their_entry_in(tmp_path):
    home, path = Home(tmp_path / "home"), tmp_path / "kvreg.lock"
    with ThreadPoolExecutor(8) as pool:
        for number in range(24):
            pool.submit(lock_profile, path, f"p{number}", entry(number), home)
    assert len(read_lockfile(path).entries) == 24


def test_an_absent_file_is_empty_or_an_error(tmp_path):
    assert read_lockfile(tmp_path / "kvreg.lock") == Lockfile()
    with pytest.raises(NotFoundError, match="no lock file"):
        read_lockfile(tmp_path / "kvreg.lock", required=True)


def test_layers_of_one_name_do_not_hide_each_other():
    layers = [
        Descriptor.of_bytes("text/plain", b"1"),
        Descriptor.of_bytes("text/plain", b"2"),
        Descriptor.of_bytes("text/plain", b"3", {ANNOTATION_TITLE: "a.whl"}),
    ]
    found = layer_digests(Manifest(Descriptor.of_bytes("text/plain", b""), tuple(layers)))
    assert set(found.values()) == {layer.digest for layer in layers}
    assert found["a.whl"] == layers[2].digest
