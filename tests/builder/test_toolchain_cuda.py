"""The CUDA tree: where files of Debian's packages go, and what must be there in the end."""

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.apt import Package
from builder.cache import InputCache, file_sha256
from builder.errors import BuildError
from builder.toolchain_cuda import _NEEDED, make_cuda_archive, place


@pytest.mark.parametrize(
    "path, expected",
    [
        ("usr/lib/nvidia-cuda-toolkit/bin/nvcc", "bin/nvcc"),
        ("usr/bin/nvcc", None),  # the shell wrapper with absolute paths
        ("etc/nvcc.profile", None),
        ("usr/lib/nvidia-cuda-toolkit/bin/g++", None),  # chooses a compiler by itself
        ("usr/lib/nvidia-cuda-toolkit/bin/cicc", "nvvm/bin/cicc"),
        ("usr/lib/nvidia-cuda-toolkit/bin/crt/link.stub", "bin/crt/link.stub"),
        ("usr/lib/nvidia-cuda-toolkit/libdevice/libdevice.10.bc", "nvvm/libdevice/libdevice.10.bc"),
        ("usr/lib/nvidia-cuda-toolkit/compute-sanitizer/libsanitizer-public.so", None),
        ("usr/bin/ptxas", "bin/ptxas"),
        ("usr/include/cuda_runtime.h", "include/cuda_runtime.h"),
        ("usr/include/crt/host_config.h", "include/crt/host_config.h"),
        ("usr/include/cuda-gdb/x.h", None),
        ("usr/lib/x86_64-linux-gnu/stubs/libcuda.so", "lib64/stubs/libcuda.so"),
        ("usr/lib/x86_64-linux-gnu/libcudart.so.12", "lib64/libcudart.so.12"),
        ("usr/lib/x86_64-linux-gnu/libcudart_static.a", "lib64/libcudart_static.a"),
        ("usr/lib/x86_64-linux-gnu/libcudadevrt.a", "lib64/libcudadevrt.a"),
        ("usr/lib/x86_64-linux-gnu/libcublas_static.a", None),
        ("usr/lib/x86_64-linux-gnu/libnvperf_host.so", None),
        ("usr/lib/x86_64-linux-gnu/cuda-gdb/libcudacore.a", None),
        ("usr/share/cmake/cub/cub-config.cmake", "lib64/cmake/cub/cub-config.cmake"),
        ("usr/share/doc/libcudart12/copyright", "share/doc/libcudart12/copyright"),
        ("usr/share/doc/libcudart12/changelog.Debian.gz", None),
        ("usr/share/man/man1/nvcc.1.gz", None),
    ],
)
def test_places(path: str, expected: str | None) -> None:
    assert place(path) == expected


@given(st.text("abc./-", max_size=40))
def test_nothing_leaves_the_tree(path: str) -> None:
    where = place(path)
    assert where is None or not where.startswith("/")


needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb")

_FROM = {
    "bin/nvcc": "usr/lib/nvidia-cuda-toolkit/bin/nvcc",
    "bin/crt/link.stub": "usr/lib/nvidia-cuda-toolkit/bin/crt/link.stub",
    "nvvm/bin/cicc": "usr/lib/nvidia-cuda-toolkit/bin/cicc",
    "nvvm/libdevice/libdevice.10.bc": "usr/lib/nvidia-cuda-toolkit/libdevice/libdevice.10.bc",
}


def _origin(name: str) -> str:
    if name in _FROM:
        return _FROM[name]
    if name.startswith("lib64/"):
        return name.replace("lib64/", "usr/lib/x86_64-linux-gnu/")
    return f"usr/{name}"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The unpacked tree of a package that holds all that is needed."""
    tree = tmp_path / "package"
    for name in _NEEDED:
        path = tree / _origin(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        path.chmod(0o755 if "/bin/" in str(path) else 0o644)
    library = tree / "usr/lib/x86_64-linux-gnu"
    (library / "libcublas.so").symlink_to("libcublas.so.12")  # in a package that is not here
    (library / "libcublas_static.a").write_text("large")
    (library / "libnvrtc.so.12").write_text("")
    (library / "libnvrtc.so").symlink_to("libnvrtc.so.12")
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(
        "Package: all\nVersion: 1\nArchitecture: all\nMaintainer: nobody <n@example.org>\n"
        "Description: everything\n"
    )
    return tree


def _pack(tree: Path, cache: InputCache, tmp_path: Path) -> Package:
    deb = tmp_path / "all.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", str(tree), str(deb)], check=True)
    digest = file_sha256(deb)
    cache.put(deb, digest)
    return Package("all", "1", "all", deb.stat().st_size, digest)


@needs_dpkg
def test_the_tree_is_complete_and_the_same_each_time(package: Path, tmp_path: Path) -> None:
    cache = InputCache(tmp_path / "cache")
    locked = _pack(package, cache, tmp_path)
    digests = {
        make_cuda_archive([locked], cache, tmp_path / "work", tmp_path / name, epoch=7)
        for name in ("1.tar", "2.tar")
    }
    assert len(digests) == 1
    assert not (tmp_path / "work").exists()
    with tarfile.open(tmp_path / "1.tar") as archive:
        members = {m.name.removeprefix("usr/local/cuda/"): m for m in archive}
        profile = archive.extractfile("usr/local/cuda/bin/nvcc.profile")
        assert profile is not None
        text = profile.read().decode()
    assert set(_NEEDED) <= set(members)
    assert "$(_HERE_)/.." in text and "/usr" not in text
    assert members["bin/nvcc"].mode == 0o755 and members["include/nvml.h"].mode == 0o644
    assert members["lib64/libnvrtc.so"].linkname == "libnvrtc.so.12"
    assert "lib64/libcublas.so" not in members  # the stub serves the linker
    assert "lib64/libcublas_static.a" not in members


@needs_dpkg
def test_a_tree_that_lacks_something_is_refused(package: Path, tmp_path: Path) -> None:
    (package / _origin("nvvm/bin/cicc")).unlink()
    cache = InputCache(tmp_path / "cache")
    locked = _pack(package, cache, tmp_path)
    with pytest.raises(BuildError) as caught:
        make_cuda_archive([locked], cache, tmp_path / "work", tmp_path / "t.tar", epoch=7)
    assert "without nvvm/bin/cicc" in (caught.value.found or "")
    assert not (tmp_path / "t.tar").exists()


@needs_dpkg
def test_a_damaged_package_is_named(tmp_path: Path) -> None:
    cache = InputCache(tmp_path / "cache")
    deb = tmp_path / "x.deb"
    deb.write_bytes(b"!<arch>\nnot a package")
    digest = file_sha256(deb)
    cache.put(deb, digest)
    with pytest.raises(BuildError, match="package broken could not be unpacked"):
        make_cuda_archive(
            [Package("broken", "1", "all", 1, digest)],
            cache,
            tmp_path / "work",
            tmp_path / "t.tar",
            epoch=7,
        )
