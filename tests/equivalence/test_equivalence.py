"""Real wheels: what we stage is what pip installs, and the table in the docs is current."""

import pytest

from builder.inputs import read_lock
from tests.equivalence.__main__ import LOCK, rows
from tests.equivalence.comparison import ON_PURPOSE, Difference, File, calls, differences
from tests.equivalence.table import DOCUMENT, meant, read_rows
from tests.support.wheels import write_wheel

INFO = "demo_pkg-1.2.dist-info"


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.timeout(1800)
def test_real_wheels(tmp_path):
    """Every locked wheel, and the table of the docs says the same of each."""
    told = {row["wheel"]: row["found"] for row in read_rows(DOCUMENT.read_text("utf-8"))}
    found = list(rows(tmp_path))
    assert [fault for row in found for fault in row.comparison.faults] == []
    assert {row.comparison.wheel: row.line().rsplit(" | ", 1)[1][:-2] for row in found} == told


def test_the_table_is_of_the_locked_wheels_and_finds_no_fault():
    page = DOCUMENT.read_text("utf-8")
    told = read_rows(page)
    locked = [item.filename for item in read_lock(LOCK) if item.name != "pip"]
    assert sorted(row["wheel"] for row in told) == sorted(locked)
    staged = [row for row in told if not row["found"].startswith("refused")]
    assert len(staged) >= 20
    assert not [row for row in told if "FAULT" in row["found"]]
    assert meant() in page
    for row in staged:
        kinds = set() if row["found"] == "none more" else set(row["found"].split(", "))
        assert kinds <= set(ON_PURPOSE)


def test_the_wheels_are_of_all_makes():
    page = DOCUMENT.read_text("utf-8")
    for word in (
        "pure", "abi3", "cp312", "binary, any Python", ".data/data", ".data/scripts",
        ".data/headers", "console_scripts", "gui_scripts", "namespace package", ".pth file",
        "top-level module", "bundled libraries", "executables", "RECORD with CRLF",
        "directories as members", "names with spaces",
        "large",
    ):  # fmt: skip
        assert any(word in line for line in page.splitlines() if line.startswith("| `")), word


@pytest.fixture
def trees(tmp_path):
    """A wheel and two equal trees of it, as `differences` takes them."""
    wheel = write_wheel(
        tmp_path,
        version="1.2",
        tag="py3-none-any",
        entry_points="[console_scripts]\nx = demo_pkg:y\n",
    )
    tree = {
        "demo_pkg/__init__.py": File(b"1", 0o644),
        f"{INFO}/INSTALLER": File(b"kvreg\n", 0o644),
        f"{INFO}/RECORD": File(b"demo_pkg/__init__.py,sha256=x,1\n", 0o644),
    }
    pips = {**tree, f"{INFO}/INSTALLER": File(b"pip\n", 0o644)}
    return wheel, tree, pips


def found(wheel, mine, pips):
    return [item.kind for item in differences(wheel, mine, pips) if not item.meant]


def test_equal_trees_differ_in_nothing_but_the_installer(trees):
    assert list(differences(*trees)) == [Difference("installer", f"{INFO}/INSTALLER")]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"demo_pkg/__init__.py": File(b"2", 0o644)}, "other bytes"),
        ({"demo_pkg/__init__.py": File(b"1", 0o755)}, "mode 755, 644"),
        ({"demo_pkg/more.py": File(b"", 0o644)}, "not in pip's tree"),
        ({"lib/more.py": File(b"", 0o644)}, "not in pip's tree"),
        ({f"{INFO}/INSTALLER": File(b"pip\n", 0o600)}, "mode 600, 644"),
        ({f"{INFO}/INSTALLER": File(b"me\n", 0o644)}, "another INSTALLER"),
        ({"bin/x": File(b"#!/bin/sh\n", 0o755)}, "not in pip's tree"),
    ],
)
def test_what_is_not_meant_is_found(trees, change, kind):
    wheel, mine, pips = trees
    assert kind in found(wheel, {**mine, **change}, pips)


def test_what_pip_has_and_we_lack_is_found(trees):
    wheel, mine, pips = trees
    assert found(wheel, mine, {**pips, "x": File(b"", 0o644)}) == ["only in pip's tree"]
    del mine["demo_pkg/__init__.py"]
    assert found(wheel, mine, pips) == ["only in pip's tree"]


def test_records_are_compared_row_by_row(trees):
    wheel, mine, pips = trees
    rows_of_pip = b"../../bin/x,sha256=z,1\ndemo_pkg/__init__.py,sha256=x,1\n"
    pips = {**pips, f"{INFO}/RECORD": File(rows_of_pip, 0o644)}
    ours = b"bin/x,sha256=another,2\ndemo_pkg/__init__.py,sha256=x,1\n"
    assert found(wheel, {**mine, f"{INFO}/RECORD": File(ours, 0o644)}, pips) == []
    ours = ours.replace(b"sha256=x", b"sha256=w")
    kinds = found(wheel, {**mine, f"{INFO}/RECORD": File(ours, 0o644)}, pips)
    assert len(kinds) == 2
    assert all(kind.startswith("RECORD: demo_pkg/__init__.py") for kind in kinds)


def test_scripts_are_the_same_when_they_call_the_same():
    old = (
        b"#!/p\n# -*- coding: utf-8 -*-\nimport re\nimport sys\nfrom a.b import c\nsys.exit(c())\n"
    )
    new = b"#!/p\nimport sys\nfrom a.b import c\nsys.exit(c())\n"
    assert calls(old) == calls(new) == ("#!/p", "a.b c", "c")
    assert calls(new.replace(b"a.b", b"a.x")) != calls(new)
    assert calls(b"#!/bin/sh\n") is None
