"""Lock files: what is written is read back, and every fault is named."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.inputs import Input, Member, read_lock, tree_input, write_lock
from kvreg.errors import NotFoundError, UsageError

DIGESTS = st.text("0123456789abcdef", min_size=64, max_size=64)
NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,12}", fullmatch=True)
FILES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,20}\.whl", fullmatch=True)
SIZES = st.integers(0, 2**40)
MEMBERS = st.builds(
    Member, st.from_regex(r"[a-z]{1,8}(/[a-z_.]{1,8}[a-z]){0,3}", fullmatch=True), SIZES, DIGESTS
)
WHOLE = st.builds(Input, NAMES, NAMES, st.sampled_from(["wheel", "sdist"]), FILES, SIZES, DIGESTS)
PARTS = st.builds(
    Input,
    NAMES,
    NAMES,
    st.just("members"),
    FILES,
    SIZES,
    DIGESTS,
    st.lists(MEMBERS, min_size=1, max_size=4).map(tuple),
)


@given(st.lists(st.one_of(WHOLE, PARTS), max_size=6, unique_by=lambda i: i.filename))
def test_a_lock_is_read_back_as_written(tmp_path_factory, inputs):
    path = tmp_path_factory.mktemp("lock") / "source.lock"
    write_lock(path, inputs, "a header\nof two lines")
    assert sorted(read_lock(path), key=repr) == sorted(inputs, key=repr)


def test_the_order_of_inputs_does_not_change_the_bytes(tmp_path):
    one = Input("a", "1", "wheel", "a-1.whl", 1, "0" * 64)
    two = Input("b", "1", "wheel", "b-1.whl", 1, "1" * 64)
    write_lock(tmp_path / "x", [one, two], "h")
    write_lock(tmp_path / "y", [two, one], "h")
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def lock_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "source.lock"
    path.write_text(text)
    return path


ENTRY = """[[input]]
name = "a"
version = "1"
kind = "wheel"
filename = "a-1.whl"
size = 3
sha256 = "%s"
""" % ("0" * 64)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("version = 2", "version: expected 1"),
        ("version = 1\n" + ENTRY.replace('"wheel"', '"egg"'), "kind"),
        ("version = 1\n" + ENTRY.replace("size = 3", "size = -1"), "size"),
        ("version = 1\n" + ENTRY.replace("size = 3", "size = true"), "size"),
        ("version = 1\n" + ENTRY.replace("0" * 64, "0" * 63), "sha256"),
        ("version = 1\n" + ENTRY.replace("a-1.whl", "../a-1.whl"), "not a plain file name"),
        ("version = 1\n" + ENTRY.replace("a-1.whl", "a/1.whl"), "not a plain file name"),
        ("version = 1\n" + ENTRY + ENTRY, "more than once"),
        ("version = 1\n" + ENTRY + 'surprise = "x"\n', "unknown keys surprise"),
        ("version = 1\n" + ENTRY.replace('"wheel"', '"members"'), "member"),
        ("version = 1\ninput = 3", "array of tables"),
        ("version = ", "TOML"),
    ],
)
def test_a_faulty_lock_is_refused_and_the_fault_named(tmp_path, text, named):
    with pytest.raises(UsageError) as caught:
        read_lock(lock_of(tmp_path, text))
    assert named in str(caught.value)


@pytest.mark.parametrize("path", ["../x.py", "/etc/passwd", "a/../../b", "a\\b"])
def test_a_member_must_stay_inside_its_wheel(tmp_path, path):
    text = "version = 1\n" + ENTRY.replace('"wheel"', '"members"')
    escaped = path.replace("\\", "\\\\")
    text += f'[[input.member]]\npath = "{escaped}"\nsize = 1\nsha256 = "{"0" * 64}"\n'
    with pytest.raises(UsageError, match="leaves the wheel"):
        read_lock(lock_of(tmp_path, text))


def test_all_faults_are_shown_at_once(tmp_path):
    text = "version = 3\n" + ENTRY.replace("size = 3", "size = -1").replace('"a"', '""')
    with pytest.raises(UsageError) as caught:
        read_lock(lock_of(tmp_path, text))
    for named in ("version", "size", "name"):
        assert named in caught.value.found


def test_a_missing_lock_says_how_to_write_it(tmp_path):
    with pytest.raises(NotFoundError, match="builder lock --profile"):
        read_lock(tmp_path / "t4" / "source.lock")


def test_a_tree_is_what_its_files_are(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.py").write_text("2")
    (tmp_path / "one.py").write_text("1")
    first = tree_input("n", "1", "src", tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "one.pyc").write_text("litter")
    assert tree_input("n", "1", "src", tmp_path) == first
    (tmp_path / "one.py").write_text("1 changed")
    assert tree_input("n", "1", "src", tmp_path).sha256 != first.sha256
    (tmp_path / "one.py").write_text("1")
    (tmp_path / "one.py").rename(tmp_path / "uno.py")
    assert tree_input("n", "1", "src", tmp_path).sha256 != first.sha256
