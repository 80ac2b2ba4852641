"""The CUDA tree from wheels: what goes where, what is locked, and stubs that a linker takes."""

import re
import tarfile
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

from builder.cache import InputCache
from builder.errors import BuildError
from builder.fetch import fetch
from builder.index import PackageIndex
from builder.inputs import read_lock
from builder.lock import lock_requirements
from builder.recipes.model import Requirements
from builder.toolchain import recorded_packages
from builder.toolchain_definition import Stub, load_toolchain
from builder.toolchain_packages import INDEX
from builder.toolchain_wheels import (
    _NEEDED,
    declared,
    lock_wheels,
    make_stubs,
    make_wheel_archive,
    place,
)
from tests.support.package_index import loopback_index
from tests.support.toolchain import engine, toolchain_image
from tests.support.upstream import wheel

__all__ = ["engine", "toolchain_image"]

NAME = "cuda-13.0-debian12"


@pytest.mark.parametrize(
    "path, expected",
    [
        ("nvidia/cu13/bin/nvcc", "bin/nvcc"),
        ("nvidia/cu13/bin/nvcc.profile", None),  # names folders that this tree does not have
        ("nvidia/cu13/nvvm/libdevice/libdevice.10.bc", "nvvm/libdevice/libdevice.10.bc"),
        ("nvidia/cu13/include/cccl/cub/cub.cuh", "include/cccl/cub/cub.cuh"),
        ("nvidia/cu13/lib/libcudart.so.13", "lib64/libcudart.so.13"),
        ("nvidia/cu13/lib/libcudart_static.a", "lib64/libcudart_static.a"),
        ("nvidia/cu13/lib/libcublasLt.so.13", None),
        ("nvidia/cu13/.metadata/provenance.txt", None),
        ("nvidia_nvvm-13.0.88.dist-info/licenses/License.txt", "share/doc/nvidia_nvvm/License.txt"),
        ("nvidia_nvvm-13.0.88.dist-info/RECORD", None),
        ("nvidia/cu13/include/../../../etc/passwd", None),
    ],
)
def test_places(path: str, expected: str | None) -> None:
    assert place(path) == expected


@given(st.text("nvidia/cu13/be.", max_size=60))
def test_nothing_leaves_the_tree(path: str) -> None:
    where = place(path)
    assert where is None or not (where.startswith("/") or ".." in where.split("/"))


def test_functions_are_read_from_headers() -> None:
    header = """
    // cuComment(1)
    #define cuMemAlloc cuMemAlloc_v2
    #define CU_FLAG 1
    CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize);
    nvmlReturn_t DECLDIR nvmlInit_v2 (void);
    cudaError_t cudaMalloc(void **p, size_t n);  /* of the runtime, which is not stubbed */
    typedef void (CUDA_CB *CUhostFn)(void *userData);
    """
    assert declared(header) == {"cuMemAlloc", "cuMemAlloc_v2", "nvmlInit_v2"}


@pytest.fixture
def index():
    """An index whose wheels hold everything that a tree needs."""
    with loopback_index() as found:
        whole, headers = {}, {}
        for name in _NEEDED:
            data = b"\x7fELF" if name.startswith(("bin/", "nvvm/bin")) else name.encode()
            if name == "lib64/libcudart.so":
                whole["nvidia/cu13/lib/libcudart.so.13"] = b"\x7fELF"
            elif name in ("include/cublas_v2.h", "include/nvrtc.h"):
                headers[f"nvidia/cu13/{name}"] = data
            else:
                whole[f"nvidia/cu13/{name.replace('lib64/', 'lib/')}"] = data
        headers["nvidia/cu13/lib/libcublas.so.13"] = b"large" * 1000
        headers["nvidia_b-2.0.0.dist-info/licenses/License.txt"] = b"no header"
        found.add("nvidia-a", *wheel("nvidia-a", "1.0.0", extra=whole))
        found.add("nvidia-b", *wheel("nvidia-b", "2.0.0", extra=headers))
        yield found


@pytest.fixture
def locked(index, tmp_path):
    """A definition with those wheels, locked, and a cache that has them."""
    folder = tmp_path / NAME
    folder.mkdir()
    original = load_toolchain(NAME).folder
    for name in ("Dockerfile", "python.sh"):
        (folder / name).write_text((original / name).read_text())
    text = (original / "toolchain.toml").read_text()
    text = re.sub(r"whole = \[.*?\]", 'whole = ["nvidia-a==1.0.0"]', text, flags=re.DOTALL)
    text = re.sub(r"headers = \[.*?\]", 'headers = ["nvidia-b==2.0.0"]', text, flags=re.DOTALL)
    (folder / "toolchain.toml").write_text(text)
    toolchain = load_toolchain(NAME, tmp_path)
    packages = PackageIndex(index.url)
    path = lock_wheels(toolchain, toolchain.cuda_wheels, packages)
    inputs, cache = read_lock(path), InputCache(tmp_path / "cache")
    fetch(inputs, cache, packages, lambda number: None)
    return inputs, cache


def test_the_tree_is_complete_and_the_same_each_time(locked, tmp_path: Path) -> None:
    inputs, cache = locked
    kinds = {item.name: item.kind for item in inputs}
    assert kinds == {"nvidia-a": "wheel", "nvidia-b": "members"}  # headers alone are downloaded
    digests = {
        make_wheel_archive(inputs, cache, tmp_path / "work", tmp_path / name, epoch=7)
        for name in ("1.tar", "2.tar")
    }
    assert len(digests) == 1
    with tarfile.open(tmp_path / "1.tar") as archive:
        members = {m.name.removeprefix("usr/local/cuda/"): m for m in archive}
    assert set(_NEEDED) <= set(members)
    assert members["bin/nvcc"].mode == 0o755 and members["include/nvml.h"].mode == 0o644
    assert members["lib64/libcudart.so"].linkname == "libcudart.so.13"
    assert not any("libcublas" in name for name in members)


def test_a_tree_that_lacks_something_is_refused(locked, tmp_path: Path) -> None:
    inputs, cache = locked
    (headers,) = (item for item in inputs if item.kind == "members")
    with pytest.raises(BuildError) as caught:
        make_wheel_archive([headers], cache, tmp_path / "work", tmp_path / "t.tar", epoch=7)
    assert "bin/nvcc" in (caught.value.found or "")
    assert not (tmp_path / "t.tar").exists()


def test_every_wheel_of_the_definition_is_locked_at_its_version() -> None:
    toolchain = load_toolchain(NAME)
    wheels = toolchain.cuda_wheels
    assert wheels is not None and toolchain.cuda_packages is None
    inputs = read_lock(toolchain.folder / wheels.lock)
    assert {f"{i.name}=={i.version}" for i in inputs if i.kind == "wheel"} == set(wheels.whole)
    headers = {f"{i.name}=={i.version}" for i in inputs if i.kind == "members"}
    assert headers == set(wheels.headers)
    assert f"nvidia-cuda-nvcc=={toolchain.cuda}" in wheels.whole
    assert toolchain.to_dict()["cuda_wheels"]["stubs"]["libcuda.so.1"] == ["cuda.h"]


def test_a_record_says_which_packages_are_wheels() -> None:
    entry = {"name": "a", "version": "1", "sha256": "0" * 64}
    found = recorded_packages([{"suite": "bookworm", **entry}, {"suite": INDEX, **entry}])
    assert [package[0] for package in found] == ["deb", "pypi"]


def test_extras_become_what_they_ask_for(index) -> None:
    needs = [
        "nvidia-a==1.0.*; sys_platform == 'linux' and extra == 'cudart'",
        "nvidia-z==9; extra == 'other'",
    ]
    index.add("cuda-toolkit", *wheel("cuda-toolkit", "13.0.2", needs))
    pins = ['cuda-toolkit[cudart]==13.0.2; platform_system == "Linux"', "nvidia-b==2.0.0"]
    index.add("torch", *wheel("torch", "2.11.0", pins))
    wanted = Requirements(alone=("torch==2.11.0",), unneeded={"nvidia-b": "not linked"})
    locked = lock_requirements(wanted, PackageIndex(index.url), lambda text: None)
    assert {f"{i.name}=={i.version}" for i in locked} == {"nvidia-a==1.0.0", "torch==2.11.0"}


@pytest.mark.engine
def test_a_linker_takes_the_stubs(engine, toolchain_image, tmp_path: Path) -> None:
    header = "#define cuInit cuInit_v2\nCUresult cuInit(unsigned int);\n"
    stubs = [Stub("libcuda.so.1", ("cuda.h",))]
    image = toolchain_image.image_digest
    for name in ("1", "2"):
        make_stubs(engine, image, stubs, lambda _: header, tmp_path / name, user="0:0")
    one = (tmp_path / "1/libcuda.so").read_bytes()
    assert one == (tmp_path / "2/libcuda.so").read_bytes()
    assert sorted(p.name for p in (tmp_path / "1").iterdir()) == ["libcuda.so"]
    with (tmp_path / "1/libcuda.so").open("rb") as handle:
        elf = ELFFile(handle)
        tags = {tag.entry.d_tag: tag for tag in elf.get_section_by_name(".dynamic").iter_tags()}
        names = {symbol.name for symbol in elf.get_section_by_name(".dynsym").iter_symbols()}
    assert tags["DT_SONAME"].soname == "libcuda.so.1"
    assert {"cuInit", "cuInit_v2"} <= names
    with pytest.raises(BuildError, match="stubs"):
        make_stubs(engine, image, [Stub("lib x.so.1", ())], lambda _: "", tmp_path, user="0:0")
