"""Archives: the same bytes for the same files, whatever their times and owners."""

import os
import tarfile
import time
from pathlib import Path

import pytest

from builder.toolchain_archive import stream_context, write_archive

EPOCH = 1_700_000_000


def _tree(root: Path) -> Path:
    (root / "b/deep").mkdir(parents=True)
    (root / "b/deep/file").write_text("text")
    (root / "a").write_text("first")
    (root / "a").chmod(0o750)
    (root / "link").symlink_to("b/deep/file")
    os.link(root / "a", root / "second-name")
    return root


def test_only_names_contents_and_modes_count(tmp_path: Path) -> None:
    one, two = _tree(tmp_path / "one"), _tree(tmp_path / "two")
    for path in two.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    first = write_archive(one, tmp_path / "1.tar", epoch=EPOCH, owner=(0, 0))
    second = write_archive(two, tmp_path / "2.tar", epoch=EPOCH, owner=(0, 0))
    assert first == second
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()
    (two / "a").chmod(0o755)
    assert write_archive(two, tmp_path / "2.tar", epoch=EPOCH, owner=(0, 0)) != first


def test_members(tmp_path: Path) -> None:
    target = tmp_path / "out.tar"
    write_archive(
        _tree(tmp_path / "tree"),
        target,
        epoch=EPOCH,
        prefix="usr/local",
        owner=(0, 0),
        include=lambda path: path != "b/deep",
    )
    with tarfile.open(target) as archive:
        members = {m.name: m for m in archive}
    assert list(members) == [
        *("usr", "usr/local", "usr/local/a", "usr/local/b", "usr/local/link"),
        "usr/local/second-name",
    ]
    assert members["usr/local/second-name"].islnk()
    assert members["usr/local/second-name"].linkname == "usr/local/a"
    assert members["usr/local/link"].linkname == "b/deep/file"
    assert {m.mtime for m in members.values()} == {EPOCH}
    assert {(m.uid, m.gid, m.uname, m.gname) for m in members.values()} == {(0, 0, "", "")}
    assert members["usr/local/a"].mode == 0o750


def test_a_failed_archive_leaves_nothing(tmp_path: Path) -> None:
    def include(path: str) -> bool:
        raise RuntimeError

    tree = _tree(tmp_path / "tree")
    with pytest.raises(RuntimeError):
        write_archive(tree, tmp_path / "out/x.tar", epoch=EPOCH, include=include)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_context_streams_its_files(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(os.urandom(3 << 20))
    data = b"".join(stream_context(b"FROM scratch\n", {"big.tar": big}))
    (tmp_path / "context.tar").write_bytes(data)
    with tarfile.open(tmp_path / "context.tar") as archive:
        assert archive.getnames() == ["Dockerfile", "big.tar"]
        member = archive.extractfile("big.tar")
        assert member is not None and member.read() == big.read_bytes()


def test_a_reader_that_gives_up_does_not_hang(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(bytes(8 << 20))
    clock = time.monotonic()
    stream = iter(stream_context(b"FROM scratch\n", {"big.tar": big}))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert time.monotonic() - clock < 5
