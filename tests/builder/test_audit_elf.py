"""Reading ELF files: against other readers on real libraries, and hostile bytes."""

import mmap
import sys
import sysconfig
from pathlib import Path

import pytest
import zstandard
from auditwheel.elfutils import (
    elf_find_versioned_symbols,
    elf_read_dt_needed,
)
from elftools.elf.elffile import ELFFile
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.audit.elf import ElfError, read_elf
from tests.builder.audit_material import INIT, calls, compile_library, device_code, versioned_stub


def real_libraries():
    """Shared objects that are here anyway: extension modules of CPython and of a package."""
    modules = Path(sysconfig.get_path("platstdlib"), "lib-dynload").glob("*.so")
    package = Path(zstandard.__file__).parent.glob("*.so")
    return [*sorted(modules)[:12], *sorted(package)]


@pytest.mark.parametrize("path", real_libraries(), ids=lambda path: path.name)
def test_agrees_with_auditwheel_and_pyelftools(path):
    facts = read_elf(path.read_bytes())
    assert list(facts.needed) == elf_read_dt_needed(path)
    with path.open("rb") as file:
        elf = ELFFile(file)
        versions = set(elf_find_versioned_symbols(elf))
        table = elf.get_section_by_name(".dynsym")
        defined = {
            symbol.name
            for symbol in table.iter_symbols()
            if symbol["st_shndx"] != "SHN_UNDEF"
            and symbol["st_info"]["bind"] != "STB_LOCAL"
            and symbol["st_other"]["visibility"] in ("STV_DEFAULT", "STV_PROTECTED")
        }
        expected = {
            symbol.name
            for symbol in table.iter_symbols()
            if symbol["st_shndx"] == "SHN_UNDEF"
            and symbol["st_info"]["bind"] == "STB_GLOBAL"
            and symbol.name
        }
    named = {(v.file, v.name) for v in facts.versions if not v.file.startswith("ld-linux")}
    assert named == versions
    assert facts.defined == defined
    strong = {symbol.name for symbol in facts.undefined if not symbol.weak}
    assert strong == expected


def test_a_memory_map_reads_like_bytes():
    path = real_libraries()[0]
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        assert read_elf(data) == read_elf(path.read_bytes())


class Module(bytes):
    """Bytes that do not fill the screen when a test fails."""

    def __repr__(self):
        return f"<module of {len(self)} bytes>"


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """A module with everything in it: device code, versions, needed libraries, a search path."""
    folder = tmp_path_factory.mktemp("elf")
    stub = versioned_stub(folder, "libc.so.6", "GLIBC_2.34", ["dlopen"])
    source = device_code("cuda12.4-sm75.fatbin") + INIT + calls("dlopen", "PyList_New")
    path = compile_library(
        folder, "_C.abi3.so", source, str(stub), "-Wl,-rpath,$ORIGIN/lib", soname="_C.so"
    )
    return Module(path.read_bytes())


def test_one_module(module):
    facts = read_elf(module)
    assert (facts.machine, facts.soname, facts.needed) == ("x86_64", "_C.so", ("libc.so.6",))
    assert facts.rpath + facts.runpath == ("$ORIGIN/lib",)
    assert {(s.name, s.version.name if s.version else None) for s in facts.undefined} == {
        ("dlopen", "GLIBC_2.34"),
        ("PyList_New", None),
    }
    assert "PyInit__C" in facts.defined
    ((start, end),) = facts.fatbin
    assert module[start : start + 4] == bytes.fromhex("50ed55ba")
    assert end - start == 2688


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damage_is_never_another_exception(module, data):
    raw = bytearray(module)
    # Most of the file is device code and padding: aim at headers, tables and the section table.
    for _ in range(data.draw(st.integers(1, 8))):
        near = data.draw(st.sampled_from([0, 0x200, len(raw) - 64 * 20]))
        position = min(len(raw) - 1, max(0, near + data.draw(st.integers(0, 1200))))
        raw[position] = data.draw(st.integers(0, 255))
    try:
        facts = read_elf(bytes(raw))
    except ElfError as error:
        assert error.what
        return
    for start, end in facts.fatbin:
        assert 0 <= start <= end <= len(raw)


@settings(deadline=None)
@given(st.binary(max_size=300).map(lambda tail: b"\x7fELF\x02\x01" + tail))
def test_noise_with_the_right_magic(data):
    try:
        read_elf(data)
    except ElfError as error:
        assert error.what


@pytest.mark.parametrize("length", [0, 3, 16, 63, 64, 1000])
def test_a_file_that_is_cut_off(module, length):
    with pytest.raises(ElfError):
        read_elf(module[:length])


def test_a_file_of_another_kind():
    with pytest.raises(ElfError, match="not an ELF file"):
        read_elf(b"#!/bin/sh\n")
    with pytest.raises(ElfError, match="supported machine"):
        read_elf(b"\x7fELF\x01\x01" + bytes(100))


def test_the_interpreter_itself():
    assert read_elf(Path(sys.executable).resolve().read_bytes()).machine in ("x86_64", "aarch64")
