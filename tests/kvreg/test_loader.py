"""What the loader would do, against what it does; and ELF files against pyelftools."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.audit.elf import read_elf
from kvreg.facts import collect, nccl
from kvreg.facts import torch as torch_facts
from kvreg.facts.elf import Elf, ElfError, highest_version
from kvreg.facts.ldcache import parse_cache
from kvreg.facts.loader import Loader
from kvreg.facts.machine import Machine
from kvreg.facts.process import BY_TORCH, torch_process
from tests.kvreg.native_material import (
    TORCH_SYMBOL,
    compile_library,
    exports,
    fake_torch,
    needs,
)
from tests.kvreg.native_material import nccl as make_nccl

MAPS = """
import ctypes, json, sys
for path in sys.argv[1:]:
    ctypes.CDLL(path)
lines = open("/proc/self/maps").read().splitlines()
print(json.dumps(sorted({line.split()[-1] for line in lines if ".so" in line})))
"""


def really_loaded(*paths, **environment):
    """The files that the real loader maps when it loads these."""
    result = subprocess.run(
        [sys.executable, "-c", MAPS, *map(str, paths)],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(result.stdout))


def simulated(*paths, **environment):
    """The same by the simulation."""
    with Loader(Path(sys.executable), environment) as loader:
        for path in paths:
            loader.load(path)
        return {str(item.path.resolve()) for item in loader.loaded.values()}


def libraries():
    """Shared objects of this machine, of several makers."""
    found = [Path(path) for path in really_loaded()]
    found += Path(sys.prefix).rglob("*.so")
    return [Path(sys.executable).resolve(), *found[:40]]


# -- ELF files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", libraries(), ids=lambda path: path.name)
def test_elf_files_read_as_pyelftools_reads_them(path):
    expected = read_elf(path.read_bytes())
    with Elf(path) as elf:
        assert elf.machine == expected.machine
        assert elf.soname == expected.soname
        assert elf.needed == expected.needed
        assert elf.rpath == tuple(filter(None, expected.rpath))
        assert elf.runpath == tuple(filter(None, expected.runpath))
        assert {(s.name, s.weak) for s in elf.undefined()} == {
            (s.name, s.weak) for s in expected.undefined
        }
        needed = {(file, name) for file, names in elf.version_needs().items() for name in names}
        assert needed == {(version.file, version.name) for version in expected.versions}
        names = sorted(expected.defined)
        assert all(map(elf.defines, names[:: max(len(names) // 500, 1)]))
        others = {symbol.name for symbol in expected.undefined} - expected.defined
        assert not any(map(elf.defines, [*others, "no_such_symbol", ""]))


@pytest.mark.parametrize("style", ["sysv", "gnu", "both"])
def test_symbols_are_found_in_both_kinds_of_hash_table(tmp_path, style):
    names = [f"demo_{number}" for number in range(60)]
    source = exports(*names) + needs("other")
    path = compile_library(tmp_path, "libdemo.so", source, f"-Wl,--hash-style={style}")
    subprocess.run(["strip", path], check=True)
    with Elf(path) as elf:
        assert all(map(elf.defines, names))
        assert not elf.defines("demo_60")
        assert [symbol.name for symbol in elf.undefined()] == ["other"]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    source = exports("one", "two") + needs("other")
    return compile_library(tmp_path_factory.mktemp("elf"), "libsmall.so", source)


@settings(max_examples=200)
@given(
    changes=st.dictionaries(
        # Headers, dynamic symbols, the dynamic segment, and the section table.
        st.integers(0, 0x3FF) | st.integers(0x2F00, 0x3010) | st.integers(0x31D0, 0x3600),
        st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]),
        max_size=8,
    ),
    kept=st.sampled_from([1.0, 1.0, 0.5, 0.01, 0.0001]),
)
def test_damaged_files_are_refused_and_never_hang(small, changes, kept):
    raw = bytearray(small.read_bytes())
    for place, value in changes.items():
        raw[place % len(raw)] = value
    del raw[int(len(raw) * kept) :]
    path = small.with_name("damaged.so")
    path.write_bytes(raw)
    try:
        with Elf(path) as elf:
            elf.undefined(), elf.version_needs(), elf.version_definitions(), elf.section(".rodata")
            elf.defines("one"), elf.strings()
    except ElfError:
        pass


def test_what_is_no_elf_file(tmp_path):
    for name, raw in {"empty": b"", "text": b"INPUT(libm.so.6)\n", "short": b"\x7fELF\2\1"}.items():
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(ElfError, match=name):
            Elf(tmp_path / name)


def test_versions_of_the_cpp_library():
    names = frozenset({"GLIBCXX_3.4", "GLIBCXX_3.4.30", "GLIBCXX_3.4.9", "GLIBCXX_TUNABLES"})
    assert highest_version(names, "GLIBCXX") == "3.4.30"
    assert highest_version(names, "CXXABI") is None


# -- the loader -----------------------------------------------------------------------------------


def test_the_cache_is_read_as_ldconfig_prints_it():
    expected = {}
    text = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    for line in text.splitlines()[1:]:
        name, _, path = line.strip().partition(" => ")
        if "x86-64" in name and "hwcaps" not in name:
            expected.setdefault(name.split(" ")[0], path)
    found = parse_cache(Path("/etc/ld.so.cache").read_bytes())
    assert {name: found[name][0] for name in expected} == expected


@given(st.binary(max_size=200))
def test_any_bytes_are_a_cache_or_none(raw):
    parse_cache(raw)
    parse_cache(b"glibc-ld.so.cache1.1" + raw)


@pytest.mark.parametrize("module", ["_ssl", "_ctypes", "zlib", "_sqlite3"])
def test_a_module_of_python_loads_what_the_simulation_says(module):
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.origin or not spec.origin.endswith(".so"):
        pytest.skip(f"{module} is built in")
    found = simulated(Path(spec.origin))
    assert {path for path in found if ".so" in path} <= really_loaded(spec.origin)


@pytest.fixture
def decoys(tmp_path):
    """A library that needs ``libdecoy.so``, which lies in three places."""
    for place in ("own", "path", "preload"):
        compile_library(tmp_path / place, "libdecoy.so", exports("decoy"))

    def user(*options):
        name = f"libuser{len(list(tmp_path.glob('*.so')))}.so"
        return compile_library(
            tmp_path, name, needs("decoy"), *options, f"-L{tmp_path / 'own'}", "-ldecoy"
        )

    return tmp_path, user


@pytest.mark.parametrize(
    ("dtags", "environment", "place"),
    [
        ("disable", {}, "own"),
        ("disable", {"LD_LIBRARY_PATH": "path"}, "own"),
        ("enable", {}, "own"),
        ("enable", {"LD_LIBRARY_PATH": "path"}, "path"),
        ("disable", {"LD_PRELOAD": "preload/libdecoy.so"}, "preload"),
        (None, {"LD_LIBRARY_PATH": "path"}, "path"),
    ],
)
def test_rpath_runpath_variable_and_preload_in_their_order(decoys, dtags, environment, place):
    folder, user = decoys
    path = ["-Wl,-rpath,$ORIGIN/own", f"-Wl,--{dtags}-new-dtags"] if dtags else []
    library = user(*path)
    variables = {key: str(folder / value) for key, value in environment.items()}
    expected = str(folder / place / "libdecoy.so")
    for loaded in (really_loaded(library, **variables), simulated(library, **variables)):
        assert {path for path in loaded if path.endswith("libdecoy.so")} == {expected}


def test_what_is_not_found_is_named(decoys):
    _, user = decoys
    with Loader(Path(sys.executable), {}) as loader:
        library = user()
        loader.load(library)
        assert loader.missing == {"libdecoy.so": str(library)}


# -- torch and its NCCL ---------------------------------------------------------------------------


@pytest.fixture
def torch(tmp_path, monkeypatch):
    """A stand-in for torch on this process's path."""

    def make(**options):
        folder = fake_torch(tmp_path / "site", **options)
        monkeypatch.syspath_prepend(tmp_path / "site")
        for name in ("LD_LIBRARY_PATH", "LD_PRELOAD", "VLLM_NCCL_SO_PATH"):
            monkeypatch.delenv(name, raising=False)
        return folder

    return make


def test_torch_is_read_and_not_imported(torch):
    folder = torch()
    facts = collect()
    assert "torch" not in sys.modules
    found = facts.torch
    assert (found.version, found.cuda, found.git) == ("2.10.0+cu128", "12.8", "abc")
    assert found.path == str(folder)
    assert found.cxx11_abi is True
    assert found.compute_capabilities == ("7.0", "7.5", "12.0+PTX")
    assert facts.nccl.loaded.version == "2.27.5"
    assert facts.nccl.loaded.origin == "RPATH of libtorch_cuda.so"


def test_a_torch_of_the_old_abi(torch):
    folder = torch()
    compile_library(folder / "lib", "libc10.so", exports("_ZN3c105ErrorC1ESs"))
    assert torch_facts.torch(Machine(), folder).cxx11_abi is False
    (folder / "lib" / "libc10.so").unlink()
    host = Machine()
    assert torch_facts.torch(host, folder).cxx11_abi is None
    assert [item.fact for item in host.unknown] == ["torch.cxx11_abi"]


@pytest.mark.parametrize(
    ("search", "variable", "version", "origin"),
    [
        ("-Wl,--disable-new-dtags", "LD_LIBRARY_PATH", "2.27.5", "RPATH of libtorch_cuda.so"),
        ("-Wl,--enable-new-dtags", "LD_LIBRARY_PATH", "2.25.1", "LD_LIBRARY_PATH"),
        ("-Wl,--disable-new-dtags", "LD_PRELOAD", "2.25.1", "LD_PRELOAD"),
    ],
)
def test_the_nccl_that_is_loaded_is_named_whatever_lies_about(
    torch, tmp_path, search, variable, version, origin
):
    folder = torch(search=search)
    decoy = make_nccl(tmp_path / "decoy", "2.25.1")
    value = str(decoy if variable == "LD_PRELOAD" else decoy.parent)
    with torch_process(folder, Machine(environment={variable: value})) as loader:
        found = nccl.nccl(Machine(environment={variable: value}), loader, ())
    assert (found.loaded.version, found.loaded.origin) == (version, origin)
    real = really_loaded(folder / "_C.so", **{variable: value})
    (used,) = [path for path in real if "libnccl" in path]
    assert used == found.loaded.path
    if origin == "LD_LIBRARY_PATH":
        assert {file.version for file in found.candidates} == {"2.25.1", "2.27.5"}


def test_a_torch_that_loads_its_libraries_by_path(torch, tmp_path, monkeypatch):
    folder = torch(search="-Wl,--enable-new-dtags")
    library = folder / "lib"
    compile_library(library, "libcudart.so.12", exports("cudaDemo"))
    compile_library(
        library, "libtorch_global_deps.so", needs("cudaDemo"), "-Wl,-rpath,$ORIGIN",
        f"-L{library}", "-l:libcudart.so.12",
    )  # fmt: skip
    (folder / "__init__.py").write_text(
        'libraries = [("nccl", "libnccl.so.*[0-9]")]\n_preload_cuda_deps()\n'
    )
    decoy = make_nccl(tmp_path / "decoy", "2.25.1")
    environment = {"LD_LIBRARY_PATH": str(decoy.parent)}
    with torch_process(folder, Machine(environment=environment)) as loader:
        assert loader.loaded["libnccl.so.2"].place.origin == BY_TORCH
        assert loader.loaded["libnccl.so.2"].path.is_relative_to(tmp_path / "site")


def test_a_library_that_is_no_nccl_has_no_version(tmp_path):
    path = compile_library(tmp_path, "libnccl.so.2", exports(TORCH_SYMBOL))
    assert nccl.nccl_version(path) is None
