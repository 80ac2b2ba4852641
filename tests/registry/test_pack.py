"""Packed folders: names that survive an upload, nothing lost, read where they are."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvreg.errors import NotFoundError, StorageError, VerificationError
from kvreg.model.profile import Profile
from registry.attach import attach
from registry.copy import copy
from registry.layout import Layout
from registry.pack import check_packed, pack, read_packed, unpack
from registry.publish import Layer, publish
from registry.verify import verify
from tests.registry.conftest import MakeRemote
from tests.registry.samples import push_artifact
from tests.support.distribution import Distribution
from tests.support.wheels import write_wheel

ROOT = Path(__file__).parents[2]


@pytest.fixture
def source(tmp_path: Path, profile: Profile, wheel: Path) -> Layout:
    """A layout with the runtime ``demo``, its attestations, and something else."""
    layout = Layout(tmp_path / "source")
    push_artifact(layout, "other", seed=8)
    found = publish(layout, profile, [Layer(wheel, role="native")]).descriptor
    sbom = attach(layout, found, "application/x-sbom", b"{}1", "sbom.json")
    attach(layout, sbom, "application/x-signature", b"sig", "signature")
    return layout


def test_the_folder(source: Layout, tmp_path: Path, profile: Profile) -> None:
    found = source.resolve("demo")
    assert found is not None
    packed = pack(source, "demo", tmp_path / "out" / "demo")
    folder = packed.folder
    assert packed.digest == found.digest
    assert packed.tags == ("demo", profile.digest_tag)
    names = {path.name for path in folder.iterdir()}
    assert names == {file.name for file in packed.files} | {"packed.json"}
    for path in folder.iterdir():
        assert path.is_file()
        assert not path.is_symlink()
        assert path.stat().st_nlink == 1
        assert re.fullmatch(r"sha256-[0-9a-f]{64}|oci-layout|(index|packed)\.json", path.name)
    # The artifact, two attestations; profile, wheel, SBOM, signature, {}
    assert sum(name.startswith("sha256-") for name in names) == 8
    table = json.loads((folder / "packed.json").read_bytes())
    assert table["artifact"] == found.digest
    assert read_packed(folder) == check_packed(folder) == packed
    assert not list(folder.parent.glob(".*"))


def test_the_same_folder_from_every_store(
    source: Layout, tmp_path: Path, distribution: Distribution, make_remote: MakeRemote
) -> None:
    remote = make_remote(distribution.host)
    copy(source, remote, "demo")
    one, two = (pack(store, "demo", tmp_path / n) for store, n in ((source, "1"), (remote, "2")))
    blobs = [{f for f in packed.files if f.name != "index.json"} for packed in (one, two)]
    assert blobs[0] == blobs[1]
    assert one.digest == two.digest


def test_it_is_a_store_that_is_only_read(source: Layout, tmp_path: Path) -> None:
    folder = pack(source, "demo", tmp_path / "demo").folder
    packed = Layout(folder)
    found = packed.resolve("demo")
    assert found == source.resolve("demo")
    assert verify(packed, "demo").ok
    assert len(packed.referrers(found.digest)) == 1
    assert "other" not in packed.list_tags()
    before = sorted(path.name for path in folder.iterdir())
    for change in (
        packed.prepare,
        lambda: packed.untag("demo"),
        lambda: packed.tag(found, "new"),
        lambda: push_artifact(packed, "new"),
        lambda: packed.delete(found.digest),
    ):
        with pytest.raises(StorageError, match="only read"):
            change()
    assert sorted(path.name for path in folder.iterdir()) == before


def test_unpacking_gives_the_layout_back(
    source: Layout, tmp_path: Path, distribution: Distribution, make_remote: MakeRemote
) -> None:
    folder = pack(source, "demo", tmp_path / "demo").folder
    for store in (Layout(tmp_path / "again"), make_remote(distribution.host)):
        unpack(folder, store)
        assert store.resolve("demo") == source.resolve("demo")
        assert verify(store, "demo").ok
        assert len([j for j in verify(store, "demo").judgements if j.part == "referrer"]) == 2
    unpack(folder, Layout(tmp_path / "again"))


def test_every_file_that_differs_is_named(source: Layout, tmp_path: Path) -> None:
    packed = pack(source, "demo", tmp_path / "demo")
    first, second, third, fourth, *_ = (f for f in packed.files if f.name.startswith("sha256-"))
    (packed.folder / first.name).unlink()
    (packed.folder / second.name).write_bytes(b"x" * second.size)
    (packed.folder / third.name).write_bytes(b"")
    (packed.folder / fourth.name).unlink()
    (packed.folder / fourth.name).mkdir()
    with pytest.raises(VerificationError) as caught:
        check_packed(packed.folder)
    problems = {problem.where: problem.what for problem in caught.value.problems}
    assert problems == {
        first.name: "is missing",
        second.name: "has other bytes",
        third.name: "has another size",
        fourth.name: "is not a file",
    }
    with pytest.raises(VerificationError):
        unpack(packed.folder, Layout(tmp_path / "never"))
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"[]",
        b"{}",
        b'{"schema":2}',
        b'{"schema":1,"artifact":"x","tags":[],"files":[]}',
        b'{"schema":1,"artifact":"sha256:%s","tags":[],"files":[{"name":"../x","size":1,'
        b'"sha256":"%s"}]}' % (b"0" * 64, b"0" * 64),
        b'{"schema":1,"artifact":"sha256:%s","tags":[],"files":[{"name":"x","size":-1,'
        b'"sha256":"%s"}]}' % (b"0" * 64, b"0" * 64),
    ],
)
def test_a_hostile_list(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "packed.json").write_bytes(raw)
    with pytest.raises(VerificationError):
        read_packed(tmp_path)


def test_what_is_refused(source: Layout, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="too large") as caught:
        pack(source, "demo", tmp_path / "out", limit=100_000)
    assert caught.value.problems[0].where.endswith(".whl")
    assert not (tmp_path / "out").exists()
    with pytest.raises(NotFoundError, match="has no absent"):
        pack(source, "absent", tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("x")
    with pytest.raises(StorageError, match="is not empty"):
        pack(source, "demo", tmp_path / "full")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="not a directory"):
        pack(source, "demo", tmp_path / "link")
    with pytest.raises(NotFoundError, match="not a packed artifact"):
        check_packed(tmp_path / "full")
    (tmp_path / "empty").mkdir()
    assert pack(source, "demo", tmp_path / "empty").folder.is_dir()


_PULL = """
import sys
from kvreg.cli import main

main(["pull", "demo", "--registry", f"oci-layout:{sys.argv[1]}", "--json"])
"""


def test_a_client_pulls_from_it_on_a_read_only_disk(
    tmp_path: Path, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path / "source")
    wheel = write_wheel(tmp_path)
    found = publish(layout, profile, [Layer(wheel, role="native")]).descriptor
    folder = pack(layout, "demo", tmp_path / "packed").folder
    monkeypatch.setenv("KVREG_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.setenv("KVREG_HOME", str(tmp_path / "home"))
    mount = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && exec "$2" -c "$3" "$1"'
    command = ["sh", "-c", mount, "sh", str(folder), sys.executable, _PULL]
    done = subprocess.run(
        ["unshare", "--mount", "--net", *command], capture_output=True, text=True, cwd=ROOT
    )
    if done.returncode != 0 and ("unshare" in done.stderr or "mount" in done.stderr):
        pytest.skip("this machine does not let us mount")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["staged"]
    assert result["manifest"]["digest"] == found.digest


_PACKER = """
import sys
from pathlib import Path
from registry.layout import Layout
from registry.pack import pack

print("ready", flush=True)
pack(Layout(Path(sys.argv[1])), sys.argv[2], Path(sys.argv[3]))
"""


def test_one_that_was_killed_goes_on(source: Layout, tmp_path: Path) -> None:
    for attempt in range(8):
        folder = tmp_path / f"out-{attempt}"
        # Before: what another artifact left there must not get in.
        killed("other", source, folder, 0.004)
        if folder.exists():
            for path in folder.iterdir():
                path.unlink()
        killed("demo", source, folder, 0.002 * 2**attempt)
        if not (folder / "packed.json").exists():
            pack(source, "demo", folder)
        packed = check_packed(folder)
        assert {path.name for path in folder.iterdir()} == {file.name for file in packed.files} | {
            "packed.json"
        }
        assert Layout(folder).list_tags() == packed.tags
        assert len(packed.files) == 10
        assert not list(tmp_path.glob(".out*"))


def killed(tag: str, source: Layout, folder: Path, seconds: float) -> None:
    command = [sys.executable, "-c", _PACKER, str(source.path), tag, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_two_at_once(source: Layout, tmp_path: Path) -> None:
    import fcntl

    work = tmp_path / ".out.packing"
    work.mkdir()
    handle = os.open(work, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with pytest.raises(StorageError, match="another process is packing"):
            pack(source, "demo", tmp_path / "out")
    finally:
        os.close(handle)
    assert pack(source, "demo", tmp_path / "out").files
