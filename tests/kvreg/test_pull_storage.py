"""Disks: full ones, crashed ones, and files that earlier runtimes have already."""

import errno
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kvreg import durability
from kvreg.activation import variables
from kvreg.errors import StorageError, VerificationError
from kvreg.home import Home
from kvreg.integrity import check_runtime
from kvreg.model.digest import sha256_bytes
from tests.kvreg.profiles import make_profile
from tests.kvreg.pulls import check_home, held, members
from tests.support.faults import faulty_registry
from tests.support.layouts import runtime_manifest, write_layout
from tests.support.wheels import write_wheel


@contextmanager
def small_disk(folder, size):
    """A file system of `size` bytes."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs to mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def large(publish):
    """A wheel of some megabytes."""
    return publish(extra=members(12_000_000))


def test_too_small_a_disk_is_refused_before_anything_is_written(large, tmp_path):
    with small_disk(tmp_path / "disk", 16 << 20) as disk, faulty_registry(large.layout) as server:
        case = replace(large, home=Home(disk / "home"))
        command = [sys.executable, "-m", "kvreg", "pull", "demo", "--registry", server.reference]
        command += ["--home", str(case.home.root), "--no-lock", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 5
        assert "too little disk space" in json.loads(done.stdout)["error"]["what"]
        assert not held(case.home)
        assert not server.sent(large.manifest.layers[0].digest)


@pytest.mark.parametrize("room", [2 << 20, 14 << 20])
def test_a_disk_that_fills_up_anyway(large, tmp_path, monkeypatch, room):
    """As when somebody else fills it: the wheel has no room, or what it unpacks to has none."""
    monkeypatch.setattr(Home, "require_space", lambda self, needed, purpose: None)
    with small_disk(tmp_path / "disk", room) as disk, faulty_registry(large.layout) as server:
        case = replace(large, home=Home(disk / "home"))
        with pytest.raises(StorageError, match="is full") as caught:
            case.pull(server.reference)
        assert caught.value.exit_code == 5
        assert check_home(case) is None
        # With room, the next pull goes on.
        subprocess.run(["mount", "-o", "remount,size=64M", str(disk)], check=True)
        before = server.sent(large.manifest.layers[0].digest)
        pulled = case.pull(server.reference)
        assert server.sent(large.manifest.layers[0].digest) - before == pulled.work.received
        assert check_home(case) == pulled.runtime


def again(published, **options):
    """Publish another artifact of the profile; its reference."""
    wheel = write_wheel(published.wheel.parent / "again", **options)
    manifest = runtime_manifest(published.profile, [(wheel, "native")], {"built": "again"})
    write_layout(
        published.layout, published.profile, [(wheel, "native")], manifest=manifest, tag=""
    )
    return f"oci-layout:{published.layout}@{sha256_bytes(manifest.to_bytes())}"


def inode(runtime, path):
    return (runtime.site / path).stat().st_ino


def test_files_of_the_runtime_before_are_not_written_again(published, tmp_path):
    first = published.pull().runtime
    kept = inode(first, "demo_pkg/data.bin")
    other = again(published, extra={"demo_pkg/tool.sh": b"#!/bin/sh\necho new\n"})
    pulled = published.pull(other)
    assert pulled.work.reused >= (pulled.runtime.site / "demo_pkg/data.bin").stat().st_size
    assert inode(pulled.runtime, "demo_pkg/data.bin") == kept
    assert (pulled.runtime.site / "demo_pkg/tool.sh").read_bytes() == b"#!/bin/sh\necho new\n"
    assert check_runtime(pulled.runtime).ok


def test_a_damaged_runtime_is_repaired_from_what_is_left_of_it(published):
    first = published.pull().runtime
    kept = inode(first, "demo_pkg/data.bin")
    (first.site / "demo_pkg/__init__.py").unlink()
    second = published.pull()
    assert inode(second.runtime, "demo_pkg/data.bin") == kept
    assert check_runtime(second.runtime).ok


def test_files_that_are_not_what_they_were_are_not_taken(published):
    first = published.pull().runtime
    path = first.site / "demo_pkg/data.bin"
    path.write_bytes(path.read_bytes()[::-1])
    pulled = published.pull(again(published))
    assert check_runtime(pulled.runtime).ok


def test_files_with_another_mode_are_not_taken(published):
    first = published.pull().runtime
    path = first.site / "demo_pkg/data.bin"
    path.chmod(0o600)
    before = path.stat().st_ino
    pulled = published.pull(again(published))
    mask = os.umask(0)
    os.umask(mask)
    found = (pulled.runtime.site / "demo_pkg/data.bin").stat()
    assert found.st_ino != before
    assert found.st_mode & 0o777 == 0o666 & ~mask


def test_verify_names_what_was_edited_in_place_in_both_runtimes(publish, tmp_path):
    one = publish(extra={"demo_pkg/same.py": b"same = 1\n"})
    first = one.pull().runtime
    profile = make_profile(tmp_path / "catalogue", "other")
    layout = tmp_path / "second"
    manifest = write_layout(layout, profile, [(one.wheel, "native")])
    two = replace(one, profile=profile, manifest=manifest, layout=layout)
    second = two.pull().runtime
    assert inode(first, "demo_pkg/same.py") == inode(second, "demo_pkg/same.py")
    with (first.site / "demo_pkg/same.py").open("r+b") as file:
        file.write(b"SAME")
    for runtime in (first, second):
        assert check_runtime(runtime).changed == ("demo_pkg/same.py",)


def test_a_file_system_that_can_not_link(published, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EMLINK, "too many links")

    published.pull()
    monkeypatch.setattr(os, "link", refuse)
    pulled = published.pull(again(published))
    assert pulled.work.reused == 0
    assert check_runtime(pulled.runtime).ok


def spoil(runtime):
    """As a crash leaves a file whose bytes had not reached the disk."""
    path = runtime.site / "demo_pkg/data.bin"
    path.write_bytes(bytes(path.stat().st_size))


def test_after_a_crash_of_the_machine_a_runtime_is_hashed_before_it_counts(
    published, monkeypatch, tmp_path
):
    boot = tmp_path / "boot_id"
    boot.write_text("one\n")
    monkeypatch.setattr(durability, "_BOOT_ID", boot)
    runtime = published.pull().runtime
    assert not published.pull().staged
    boot.write_text("two\n")
    spoil(runtime)
    assert published.pull().staged
    assert check_runtime(published.pull().runtime).ok
    # Found to be right once, it counts from then on.
    boot.write_text("three\n")
    assert not published.pull().staged
    assert not list(published.home.runtimes.glob("*/.written-under"))


def test_after_a_crash_of_the_machine_a_damaged_runtime_is_not_run(
    published, monkeypatch, tmp_path
):
    boot = tmp_path / "boot_id"
    boot.write_text("one\n")
    monkeypatch.setattr(durability, "_BOOT_ID", boot)
    runtime = published.pull().runtime
    boot.write_text("two\n")
    assert variables(runtime, published.home, {})
    (runtime.folder / ".written-under").write_text("one")
    spoil(runtime)
    with pytest.raises(VerificationError, match="crashed"):
        variables(runtime, published.home, {})


def test_without_a_boot_id_the_disk_is_waited_for(published, monkeypatch):
    monkeypatch.setattr(durability, "_BOOT_ID", Path("/nonexistent"))
    synced = []
    real = durability._sync
    monkeypatch.setattr(durability, "_sync", lambda folder: (synced.append(folder), real(folder)))
    runtime = published.pull().runtime
    assert synced
    assert not (runtime.folder / ".written-under").exists()
    assert not published.pull().staged
