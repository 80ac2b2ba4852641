"""Layouts under attached inputs: found at every depth that counts, within bounds."""

import pytest

import kvreg
from kvreg.attached import find_layouts, input_directories
from kvreg.errors import NotFoundError
from kvreg.reference import LayoutReference
from tests.support.layouts import packed_layout


def make_layout(folder):
    folder.mkdir(parents=True)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text("{}")


def found(root, **options):
    result = find_layouts((root,), **options)
    return [str(item.path.relative_to(root)) for item in result.layouts], result.complete


def test_layouts_of_depth_0_to_3_are_found_nearest_first(tmp_path):
    for path in ("b", "a/x", "a/y/z", "a/y/deep/deeper", "c/only"):
        make_layout(tmp_path / path)
    (tmp_path / "c/only/index.json").unlink()
    # Below a layout there are blobs and no other layout.
    make_layout(tmp_path / "b/inside")
    assert found(tmp_path) == (["b", "a/x", "a/y/z"], True)
    make_layout(tmp_path / "root")
    assert found(tmp_path / "root") == (["."], True)


def test_links_are_followed_and_loops_end(tmp_path):
    make_layout(tmp_path / "elsewhere/layout")
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs/linked").symlink_to(tmp_path / "elsewhere/layout")
    (tmp_path / "inputs/loop").symlink_to(tmp_path / "inputs")
    paths, complete = found(tmp_path / "inputs")
    assert paths[0] == "linked"
    assert complete


def test_the_search_gives_up_in_large_data_sets(tmp_path):
    for number in range(30):
        (tmp_path / f"picture{number}").touch()
    make_layout(tmp_path / "z/layout")
    assert found(tmp_path, limit=20) == ([], False)
    assert found(tmp_path, limit=40) == (["z/layout"], True)


def test_what_is_not_there_holds_nothing(tmp_path):
    assert found(tmp_path / "absent") == ([], True)


def test_the_directories_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("KVREG_INPUTS", raising=False)
    assert [str(path) for path in input_directories()] == ["/kaggle/input"]
    monkeypatch.setenv("KVREG_INPUTS", f"{tmp_path}::/other")
    assert [str(path) for path in input_directories()] == [str(tmp_path), "/other"]
    monkeypatch.setenv("KVREG_INPUTS", "")
    assert input_directories() == ()


@pytest.mark.parametrize("packed", [False, True])
def test_a_pull_finds_the_attached_input_by_itself(published, monkeypatch, tmp_path, packed):
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    if packed:
        packed_layout(published.layout, inputs / "owner/data-set/runtime")
    else:
        published.layout.rename(inputs / "set")
    make_layout(inputs / "another")
    (inputs / "another/index.json").write_text('{"schemaVersion": 2, "manifests": []}')
    monkeypatch.setenv("KVREG_INPUTS", str(inputs))
    found = kvreg.resolve("demo", lock=tmp_path / "kvreg.lock")
    assert found.origin == "attached input"
    assert [attempt.outcome for attempt in found.tried] == ["absent", "used"]
    pulled = kvreg.pull("demo", home=published.home.root, progress=False)
    assert pulled.staged
    assert pulled.runtime.manifest_digest == found.manifest_digest


def test_an_attached_layout_is_no_reason_to_fail_when_it_has_nothing(published, monkeypatch):
    make_layout(published.layout.parent / "inputs/another")
    path = published.layout.parent / "inputs/another/index.json"
    path.write_text('{"schemaVersion": 2, "manifests": []}')
    monkeypatch.setenv("KVREG_INPUTS", str(path.parents[1]))
    with pytest.raises(NotFoundError, match="no artifact") as caught:
        kvreg.pull("demo", home=published.home.root)
    assert "another" in str(caught.value)


def test_references_of_layouts_are_references(tmp_path):
    make_layout(tmp_path / "a")
    (layout,) = find_layouts((tmp_path,)).layouts
    assert layout == LayoutReference(tmp_path / "a")
