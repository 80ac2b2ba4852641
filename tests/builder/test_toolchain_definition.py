"""Definitions of toolchains: the committed ones, and what is wrong with broken ones."""

import re
import shutil
from pathlib import Path

import pytest

from builder.apt import read_package_lock
from builder.layout import find_checkout
from builder.toolchain import inputs_digest, load_toolchain, toolchain_names
from kvreg.errors import ContractError, NotFoundError

DOCKERFILES = find_checkout().dockerfiles
DEBIAN, UBUNTU = "cuda-12.4-debian12", "cuda-12.8.1-ubuntu22.04"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the Debian toolchain's folder that may be changed."""
    return Path(shutil.copytree(DOCKERFILES / DEBIAN, tmp_path / DEBIAN))


def _edit(folder: Path, *changes: tuple[str, str]) -> None:
    path = folder / "toolchain.toml"
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path.write_text(text)


def test_the_committed_definitions_are_valid() -> None:
    assert {DEBIAN, UBUNTU} <= set(toolchain_names())
    debian, ubuntu = load_toolchain(DEBIAN), load_toolchain(UBUNTU)
    assert (debian.cuda, debian.glibc) == ("12.4.131", "2.36")
    assert (ubuntu.cuda, ubuntu.glibc) == ("12.8.93", "2.35")
    assert ubuntu.base_image is not None
    assert len(ubuntu.base_image.digests) == 2


def test_the_dockerfile_pulls_by_a_digest_of_the_definition() -> None:
    toolchain = load_toolchain(UBUNTU)
    assert toolchain.base_image is not None
    text = (toolchain.folder / "Dockerfile").read_text()
    (named,) = re.findall(r"ARG BASE=(\S+)@(sha256:[0-9a-f]{64})", text)
    assert named[0] == f"{toolchain.base_image.repository}:{toolchain.base_image.tag}"
    assert named[1] in toolchain.base_image.digests


def test_every_cuda_package_is_locked_and_no_file_names_a_host() -> None:
    toolchain = load_toolchain(DEBIAN)
    assert toolchain.cuda_packages is not None
    locked = read_package_lock(toolchain.folder / toolchain.cuda_packages.lock)
    assert {p.name for p in locked} == set(toolchain.cuda_packages.names)
    versions = {p.name: p.version for p in locked}
    assert versions["nvidia-cuda-toolkit"].startswith(toolchain.cuda)
    for path in DOCKERFILES.rglob("*"):
        if path.is_file():
            assert not re.search(r"https?://|\b(debian|ubuntu)\.(org|com)\b", path.read_text()), (
                path
            )


def test_an_unknown_name_lists_the_known_ones() -> None:
    for name in ("cuda-99", "../dockerfiles/cuda-12.4-debian12", ""):
        with pytest.raises(NotFoundError) as caught:
            load_toolchain(name)
        assert DEBIAN in (caught.value.expected or "")


def test_all_faults_are_reported_at_once(copy: Path) -> None:
    _edit(
        copy,
        ("schema = 1", "schema = 2"),
        (f'name = "{DEBIAN}"', 'name = "other"'),
        ('cuda = "12.4.131"', "cuda = 12.4"),
        ('suite = "bookworm"', 'suite = "Book Worm"'),
        ('"pyenv", ', '"conda", '),
        ("[python]", "[python]\ncolour = 1"),
        ("source_date_epoch = 1700000000", "source_date_epoch = -1"),
    )
    (copy / "python.sh").unlink()
    with pytest.raises(ContractError) as caught:
        load_toolchain(DEBIAN, copy.parent)
    assert {p.where for p in caught.value.problems} == {
        *("schema", "name", "cuda", "rootfs.suite", "python.origins", "python.colour"),
        *("source_date_epoch", "python.sh"),
    }
    (fault,) = (p for p in caught.value.problems if p.where == "cuda")
    assert (fault.expected, fault.found) == ("nvcc's version", "12.4")


@pytest.mark.parametrize(
    "change, where",
    [
        (('kind = "debootstrap"', 'kind = "magic"'), "kind"),
        (('kind = "debootstrap"', 'kind = "pull"'), "base_image"),
        (("[rootfs]", "[roots]"), "rootfs"),
        (('components = ["main", "non-free"]', "components = []"), "cuda_packages.components"),
        (('"patchelf",', '"patchelf; rm -rf /",'), "rootfs.include"),
        (('version = "3.12"', 'version = "3.13"'), "python.version"),
    ],
)
def test_a_fault_names_its_place(copy: Path, change: tuple[str, str], where: str) -> None:
    _edit(copy, change)
    with pytest.raises(ContractError) as caught:
        load_toolchain(DEBIAN, copy.parent)
    assert where in {p.where for p in caught.value.problems}


def test_what_is_not_toml_is_refused(copy: Path) -> None:
    (copy / "toolchain.toml").write_text("schema = [")
    with pytest.raises(ContractError, match="not TOML"):
        load_toolchain(DEBIAN, copy.parent)


def test_the_inputs_digest_follows_what_decides_the_image(copy: Path) -> None:
    def digest() -> str:
        return inputs_digest(load_toolchain(DEBIAN, copy.parent))

    before = digest()
    assert before == inputs_digest(load_toolchain(DEBIAN))
    (copy / "rootfs.lock").write_text("version = 1\n")  # compared with the image, not decisive
    (copy / ".editor-backup").write_text("")
    assert digest() == before
    seen = {before}
    for name in ("Dockerfile", "cuda.lock", "python.sh", "toolchain.toml"):
        with (copy / name).open("a") as handle:
            handle.write("# changed\n")
        seen.add(digest())
    assert len(seen) == 5
