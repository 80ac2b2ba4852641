"""The root file system: what is kept of it, its packages, and how it compares with the lock."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.apt import Package
from builder.cache import InputCache
from builder.errors import BuildError
from builder.toolchain_definition import Rootfs
from builder.toolchain_rootfs import (
    drift,
    installed_packages,
    make_rootfs_archive,
    parse_status,
    wanted,
)
from kvreg.errors import NotFoundError, UsageError

LEFT_OUT = """
etc/machine-id etc/hostname etc/resolv.conf etc/passwd- etc/shadow- etc/.pwd.lock
var/log/dpkg.log var/cache/apt/pkgcache.bin var/cache/ldconfig/aux-cache
var/lib/dpkg/status-old var/lib/dpkg/lock-frontend var/lib/apt/lists/x
dev/null proc/1 tmp/x run/lock debootstrap/debootstrap.log debootstrap
usr/share/man/man1/gcc.1.gz usr/share/doc/gcc/README usr/share/locale/de/x.mo
"""
KEPT = """
bin dev proc tmp usr/bin/gcc etc/passwd etc/shadow etc/ld.so.cache var/lib/dpkg/status
var/lib/dpkg/info/libc6:amd64.list usr/share/doc/gcc/copyright var/log var/cache/apt
"""


def test_what_differs_by_run_or_is_not_needed_stays_out() -> None:
    assert [path for path in LEFT_OUT.split() if wanted(path)] == []


def test_what_is_needed_or_due_stays_in() -> None:
    assert [path for path in KEPT.split() if not wanted(path)] == []


STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Multi-Arch: same
Version: 2.36-9+deb12u10
Description: GNU C Library
 Version: not this one
 .
 More text.

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: bsdutils
Status: install ok installed
Architecture: amd64
Version: 1:2.38.1-5
"""


def test_installed_packages_have_the_digest_of_their_deb(tmp_path: Path) -> None:
    status = tmp_path / "root/var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text(STATUS)
    debs = tmp_path / "debs"
    debs.mkdir()
    (debs / "libc6_2.36-9+deb12u10_amd64.deb").write_bytes(b"")
    with pytest.raises(BuildError, match=r"bsdutils_1%3a2\.38\.1-5_amd64\.deb"):
        installed_packages(tmp_path / "root", debs)
    (debs / "bsdutils_1%3a2.38.1-5_amd64.deb").write_bytes(b"{}")
    found = installed_packages(tmp_path / "root", debs)
    assert [(p.name, p.version, p.size) for p in found] == [
        ("bsdutils", "1:2.38.1-5", 2),
        ("libc6", "2.36-9+deb12u10", 0),
    ]
    assert found[0].sha256 == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@given(st.text(max_size=300))
def test_any_text_is_a_status_file(text: str) -> None:
    parse_status(text)


def _package(name: str, version: str, fill: str = "0") -> Package:
    return Package(name, version, "amd64", 1, fill * 64)


def test_drift_names_what_changed() -> None:
    locked = [_package("a", "1"), _package("b", "1"), _package("c", "1"), _package("d", "1")]
    found = [_package("a", "1"), _package("b", "2"), _package("c", "1", "f"), _package("e", "1")]
    difference = drift(locked, found)
    assert difference
    assert difference.changed[0] == ("b", "1", "2")
    assert difference.changed[1][0] == "c"
    assert (difference.added, difference.removed) == (("e",), ("d",))
    assert str(difference).startswith("b 1 -> 2, c sha256:0")
    assert not drift(locked, list(reversed(locked)))


@pytest.mark.skipif(os.geteuid() != 0, reason="is root's view of somebody else")
def test_without_root_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.toolchain_rootfs.os.geteuid", lambda: 1234)
    monkeypatch.setattr("builder.toolchain_rootfs.require_tools", lambda *names: None)
    rootfs = Rootfs("bookworm", ("patchelf",), "rootfs.lock")
    with pytest.raises(UsageError, match="needs root") as caught:
        make_rootfs_archive(
            rootfs, "file:/none", InputCache(tmp_path), tmp_path / "w", tmp_path / "t", epoch=0
        )
    assert "kind pull" in (caught.value.remedy or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap needs root")
def test_a_failing_debootstrap_shows_its_last_words(tmp_path: Path) -> None:
    rootfs = Rootfs("bookworm", ("patchelf",), "rootfs.lock")
    seen: list[str] = []
    try:
        with pytest.raises(BuildError, match="debootstrap of bookworm failed") as caught:
            make_rootfs_archive(
                rootfs,
                f"file:{tmp_path}/nothing",
                InputCache(tmp_path / "cache"),
                tmp_path / "work",
                tmp_path / "out.tar",
                epoch=0,
                say=seen.append,
            )
    except NotFoundError as error:
        pytest.skip(str(error))
    assert "Release" in (caught.value.found or "")
    assert seen and not (tmp_path / "out.tar").exists()
