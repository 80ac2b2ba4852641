"""Packages of another suite: what apt says, locks, and a mirror of our own on disk."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.apt import (
    Package,
    PrivateApt,
    parse_index_targets,
    parse_print_uris,
    read_package_lock,
    require_tools,
    write_package_lock,
)
from builder.cache import InputCache
from kvreg.errors import NetworkError, NotFoundError, UsageError, VerificationError

NAMES = st.from_regex(r"[a-z0-9][a-z0-9+.-]{1,12}", fullmatch=True)
VERSIONS = st.from_regex(r"([0-9]:)?[0-9][a-z0-9.+~-]{0,12}", fullmatch=True)
PACKAGES = st.builds(
    Package,
    NAMES,
    VERSIONS,
    st.sampled_from(["amd64", "all"]),
    st.integers(0, 2**40),
    st.binary(min_size=32, max_size=32).map(bytes.hex),
)


@given(st.lists(PACKAGES, max_size=8, unique_by=lambda p: p.name))
def test_a_lock_reads_back_as_written(tmp_path_factory: object, packages: list[Package]) -> None:
    path = tmp_path_factory.mktemp("lock") / "x.lock"  # type: ignore[attr-defined]
    write_package_lock(path, packages, "a header\nof two lines")
    assert list(read_package_lock(path)) == sorted(packages, key=lambda p: (p.name, p.architecture))


@pytest.mark.parametrize(
    "text, fault",
    [
        ("version = 2", "version: expected 1"),
        ("version = 1\n[[package]]\nname = 'a'", "package 1: expected name, version"),
        (
            "version = 1\n[[package]]\nname='a'\nversion='1'\narchitecture='all'\nsize=1\n"
            "sha256='xyz'",
            "package 1 (a): size or sha256 is malformed",
        ),
    ],
)
def test_a_broken_lock_says_what_is_wrong(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "x.lock").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_package_lock(tmp_path / "x.lock")
    assert fault in (caught.value.found or "")


def test_an_absent_lock_says_how_to_write_it(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="builder toolchain lock"):
        read_package_lock(tmp_path / "x.lock")


def test_mirrors_are_those_of_the_main_archive() -> None:
    output = """\
https://packages.example/apt cloud-sdk-bookworm main
https://node.example/node nodistro main
https://tools.example bookworm main
https://m.example/debian/ bookworm main
https://m.example/debian/ bookworm-updates main
https://m.example/debian-security/ bookworm-security main
https://m.example/debian/ bookworm non-free
"""
    found = parse_index_targets(output)
    assert found[0] == "https://m.example/debian"
    assert "https://m.example/debian-security" not in found


@given(st.text(max_size=200))
def test_parsers_take_any_text(text: str) -> None:
    parse_index_targets(text)
    parse_print_uris(text)


def test_locations_of_packages() -> None:
    digest = "ab" * 32
    (found,) = parse_print_uris(
        f"'http://m/pool/libcu%2b%2b-dev_2.3.2-2_all.deb' libcu++-dev_2.3.2-2_all.deb 765284 "
        f"SHA256:{digest}\n"
    )
    assert (found.name, found.version, found.architecture) == ("libcu++-dev", "2.3.2-2", "all")
    assert (found.size, found.sha256) == (765284, digest)


def test_absent_programs_are_named_with_their_packages() -> None:
    with pytest.raises(NotFoundError) as caught:
        require_tools("sh", "no-such-program")
    assert "without no-such-program" in (caught.value.found or "")
    assert "apt-get install no-such-program" in (caught.value.remedy or "")


needs_apt = pytest.mark.skipif(
    not (shutil.which("apt-get") and shutil.which("dpkg-deb")), reason="no Debian tools"
)


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[PrivateApt, Package, Path]:
    """An apt whose only source is a repository on disk with one package, `tiny` 1:2.0+x."""
    repository = tmp_path / "repository"
    tree = repository / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        "Package: tiny\nVersion: 1:2.0+x\nArchitecture: all\nMaintainer: nobody <n@example.org>\n"
        "Description: a package for a test\n"
    )
    deb = repository / "tiny_2.0+x_all.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", str(tree), str(deb)], check=True)
    digest = hashlib.sha256(deb.read_bytes()).hexdigest()
    control = (tree / "DEBIAN/control").read_text()
    (repository / "Packages").write_text(
        f"{control}Filename: ./{deb.name}\nSize: {deb.stat().st_size}\nSHA256: {digest}\n"
    )
    apt = PrivateApt(tmp_path / "apt", "./", ())
    apt._configure(f"file:{repository}")
    sources = apt.root / "etc/sources.list"
    sources.write_text(f"deb [trusted=yes] file:{repository} ./\n")
    assert apt._apt("update").returncode == 0
    return apt, Package("tiny", "1:2.0+x", "all", deb.stat().st_size, digest), deb


@needs_apt
def test_a_locked_package_comes_into_the_cache(
    mirror: tuple[PrivateApt, Package, Path], tmp_path: Path
) -> None:
    apt, package, _ = mirror
    cache = InputCache(tmp_path / "cache")
    arrived: list[int] = []
    apt.fetch([package], cache, arrived.append)
    assert cache.has(package.sha256)
    assert sum(arrived) in (0, package.size)  # apt may hand a local file on at once
    apt.fetch([package], cache)  # nothing to do


@needs_apt
def test_another_digest_than_the_locked_one_is_refused(
    mirror: tuple[PrivateApt, Package, Path], tmp_path: Path
) -> None:
    apt, package, _ = mirror
    wrong = Package(package.name, package.version, "all", package.size, "0" * 64)
    with pytest.raises(VerificationError) as caught:
        apt.fetch([wrong], InputCache(tmp_path / "cache"))
    assert "tiny 1:2.0+x" in caught.value.what
    assert (caught.value.expected, caught.value.found) == (
        "sha256:" + "0" * 64,
        f"sha256:{package.sha256}",
    )


@needs_apt
def test_bytes_that_changed_at_the_mirror_are_refused(
    mirror: tuple[PrivateApt, Package, Path], tmp_path: Path
) -> None:
    apt, package, deb = mirror
    deb.write_bytes(b"x" * package.size)
    cache = InputCache(tmp_path / "cache")
    with pytest.raises((VerificationError, NetworkError)):
        apt.fetch([package], cache)
    assert not cache.has(package.sha256)


@needs_apt
def test_a_version_that_the_mirror_lacks_is_named(
    mirror: tuple[PrivateApt, Package, Path], tmp_path: Path
) -> None:
    apt, package, _ = mirror
    gone = Package("tiny", "1:9.9", "all", 1, package.sha256)
    with pytest.raises(NotFoundError) as caught:
        apt.fetch([gone], InputCache(tmp_path / "cache"))
    assert "tiny=1:9.9" in (caught.value.expected or "")
    assert "KVREG_DEBIAN_MIRROR" in (caught.value.remedy or "")


@needs_apt
def test_a_mirror_that_is_not_debians_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("KVREG_DEBIAN_MIRROR", f"file:{tmp_path}/empty")
    with pytest.raises(NetworkError) as caught:
        PrivateApt(tmp_path / "apt", "trixie", ("main",)).update()
    assert "E:" in (caught.value.found or "") or "W:" in (caught.value.found or "")
