"""The parser of device code: NVIDIA's own files, what cuobjdump says, and hostile bytes."""

import importlib.util
import json
import mmap
import os
import re
import shutil
import struct
import subprocess
import zipfile
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import lz4.block
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.audit.elf import read_elf
from builder.fatbin import FatbinError, Kind, iter_entries, parse_fatbin
from builder.fatbin_payload import check_cubin, cubin_architecture, head, unpack
from tests.builder.audit_material import FATBINS, pack_entry, pack_region

FILES = sorted(path.name for path in FATBINS.glob("*.fatbin"))
ARCHITECTURES = {
    "cuda12.4-compressed.fatbin": ["sm_75", "sm_90a", "compute_90"],
    "cuda12.4-plain.fatbin": ["sm_75", "compute_75", "sm_90", "sm_90a"],
    "cuda12.4-sm75.fatbin": ["sm_75"],
    "cuda13.0-families.fatbin": [
        *("sm_90a", "sm_100f", "sm_120a", "compute_120a", "sm_90", "compute_90"),
    ],
    "cuda13.0-lto.fatbin": ["sm_75", "lto_90"],
    "cuda13.0-lz4.fatbin": ["sm_75", "compute_75"],
    "cuda13.0-zstd.fatbin": ["sm_75", "compute_75"],
}


def entries_of(data):
    return list(iter_entries(parse_fatbin(data)))


@pytest.mark.parametrize("name", FILES)
def test_architectures_of_files_that_nvcc_made(name):
    data = (FATBINS / name).read_bytes()
    assert [entry.architecture for entry in entries_of(data)] == ARCHITECTURES[name]


@pytest.mark.parametrize("name", FILES)
def test_cubins_and_ptx_are_what_their_entries_say(name):
    data = (FATBINS / name).read_bytes()
    for entry in entries_of(data):
        if entry.kind == Kind.CUBIN:
            assert check_cubin(data, entry) is None
            assert unpack(data, entry).startswith(b"\x7fELF")
            assert head(data, entry, 4) == b"\x7fELF"
        elif entry.kind == Kind.PTX:
            target = f".target sm_{entry.architecture.removeprefix('compute_')}"
            assert target.encode() in unpack(data, entry)


@pytest.mark.parametrize(
    ("name", "compression"),
    [
        ("cuda12.4-plain.fatbin", {None}),
        ("cuda12.4-compressed.fatbin", {"lz4"}),
        ("cuda13.0-lz4.fatbin", {None, "lz4"}),
        ("cuda13.0-zstd.fatbin", {"zstd"}),
    ],
)
def test_compression(name, compression):
    data = (FATBINS / name).read_bytes()
    assert {entry.compression for entry in entries_of(data)} == compression


def test_lto_code_is_told_and_cannot_be_unpacked():
    data = (FATBINS / "cuda13.0-lto.fatbin").read_bytes()
    entry = entries_of(data)[1]
    assert (entry.kind, entry.is_sass) == (Kind.LTO_IR, False)
    with pytest.raises(FatbinError, match="lto_90"):
        unpack(data, entry)


def test_a_cubin_by_itself():
    assert cubin_architecture((FATBINS / "cuda13.0-sm75.cubin").read_bytes()) == (75, False)


def test_the_whole_format_is_accounted_for():
    """Regions and entries fill the file: nothing is skipped, so nothing can hide."""
    data = b"".join((FATBINS / name).read_bytes() for name in FILES) + bytes(40)
    regions = parse_fatbin(data)
    assert len(regions) == len(FILES)
    assert regions[-1].end == len(data) - 40
    for region, following in pairwise(regions):
        assert region.end == following.offset
    for region in regions:
        assert region.entries[0].offset == region.offset + region.header_size
        assert region.entries[-1].end == region.end


# ---- against NVIDIA's tool -------------------------------------------------------------------


def normal(architectures, listing):
    """Entry names as cuobjdump writes them, with the suffix dropped where the tool has none.

    Older releases of it print a suffix only when the ELF header holds one, which cubins of the
    second layout need not.
    """
    ours = Counter(
        name.replace("compute_", "sm_") + (".ptx" if name.startswith("compute_") else ".cubin")
        for name in architectures
        if not name.startswith("lto_")
    )
    theirs = Counter(listing)
    for name in list(ours):
        plain = re.sub(r"(?<=\d)[af](?=\.cubin)", "", name)
        while plain != name and ours[name] > theirs[name] and ours[name]:
            ours[name] -= 1
            ours[plain] += 1
    return +ours, theirs


RECORDED = json.loads((FATBINS / "cuobjdump.json").read_text())["listings"]


@pytest.mark.parametrize("name", FILES)
def test_agrees_with_what_cuobjdump_said(name):
    data = (FATBINS / name).read_bytes()
    ours, theirs = normal([e.architecture for e in entries_of(data)], RECORDED[name])
    assert ours == theirs


def cuobjdump():
    """NVIDIA's tool: $CUOBJDUMP, on PATH, in a CUDA tree, or as Triton ships it."""
    candidates = [os.environ.get("CUOBJDUMP"), shutil.which("cuobjdump")]
    candidates.append(shutil.which("cuobjdump", path="/usr/local/cuda/bin"))
    if spec := importlib.util.find_spec("triton"):
        candidates.append(str(Path(spec.origin).parent / "backends/nvidia/bin/cuobjdump"))
    return next((tool for tool in candidates if tool and Path(tool).is_file()), None)


def listing(path):
    done = subprocess.run(
        [cuobjdump(), "-lelf", "-lptx", str(path)], capture_output=True, text=True, check=False
    )
    return [".".join(m) for m in re.findall(r"\.(sm_\w+)\.(cubin|ptx)$", done.stdout, re.M)]


needs_cuobjdump = pytest.mark.skipif(cuobjdump() is None, reason="no cuobjdump here")


@needs_cuobjdump
@pytest.mark.parametrize("name", FILES)
def test_agrees_with_cuobjdump(name):
    data = (FATBINS / name).read_bytes()
    ours, theirs = normal([e.architecture for e in entries_of(data)], listing(FATBINS / name))
    assert ours == theirs


@needs_cuobjdump
@pytest.mark.skipif("KVREG_TEST_WHEEL" not in os.environ, reason="no KVREG_TEST_WHEEL")
def test_agrees_with_cuobjdump_on_every_module_of_a_wheel(tmp_path):
    """KVREG_TEST_WHEEL names a wheel with CUDA modules, such as upstream's vLLM."""
    compared = 0
    with zipfile.ZipFile(os.environ["KVREG_TEST_WHEEL"]) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(".so"):
                continue
            path = Path(archive.extract(info, tmp_path))
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
                names = [
                    entry.architecture
                    for start, end in read_elf(data).fatbin
                    for entry in iter_entries(parse_fatbin(data, start, end))
                ]
            if names:
                ours, theirs = normal(names, listing(path))
                assert ours == theirs, info.filename
                compared += 1
            path.unlink()
    assert compared


# ---- hostile bytes ---------------------------------------------------------------------------


@st.composite
def containers(draw):
    """A well-formed container and the (kind, sm, payload) of its entries, per region."""
    entry = st.tuples(
        st.sampled_from([1, 2, 8, 16, 64]), st.integers(0, 255), st.binary(max_size=80)
    )
    regions = draw(st.lists(st.lists(entry, max_size=4), max_size=4))
    gaps = draw(st.lists(st.integers(0, 3), min_size=len(regions) + 1, max_size=len(regions) + 1))
    parts = []
    for gap, region in zip(gaps, regions, strict=False):
        packed = [pack_entry(k, sm, p, extra_header=(sm % 3) * 16) for k, sm, p in region]
        parts += [bytes(8 * gap), pack_region(packed)]
    return b"".join([*parts, bytes(8 * gaps[-1])]), regions


@settings(deadline=None)
@given(containers())
def test_reads_back_what_was_packed(container):
    data, packed = container
    regions = parse_fatbin(data)
    assert [
        [(entry.kind, entry.sm, unpack(data, entry)) for entry in region.entries]
        for region in regions
    ] == [[(kind, sm, p + bytes(-len(p) % 8)) for kind, sm, p in region] for region in packed]


@settings(deadline=None)
@given(containers(), st.data())
def test_a_damaged_container_is_an_error_or_still_within_bounds(container, data):
    raw = bytearray(container[0])
    for _ in range(data.draw(st.integers(1, 6))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))]
    try:
        entries = entries_of(raw)
    except FatbinError:
        return
    for entry in entries:
        assert 0 <= entry.payload_offset <= entry.end <= len(raw)
        try:
            unpack(raw, entry, limit=1 << 20)
        except FatbinError as error:
            assert error.expected and error.found


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FILES), st.data())
def test_damage_to_real_files_is_never_another_exception(name, data):
    raw = bytearray((FATBINS / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        for entry in entries_of(raw):
            if entry.is_sass:
                check_cubin(raw, entry)
            unpack(raw, entry)
    except FatbinError as error:
        assert "byte" in error.what


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_noise(data):
    with suppress(FatbinError):
        assert entries_of(data) == [] or data


def field(data, offset, fmt, value):
    changed = bytearray(data)
    struct.pack_into(fmt, changed, offset, value)
    return bytes(changed)


ONE = pack_region([pack_entry(2, 75, b"x" * 16)])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (field(ONE, 0, "<I", 0x12345678), "magic number"),
        (field(ONE, 4, "<H", 2), "region version"),
        (field(ONE, 8, "<Q", 1 << 63), "region of at most"),
        (field(ONE, 6, "<H", 8), "region of at most"),
        (field(ONE, 20, "<I", 0), "entry header of 64 bytes or more"),
        (field(ONE, 24, "<Q", 1 << 60), "entry of at most"),
        (field(ONE, 8, "<Q", 32)[:48], "bytes of entry header"),
        (field(ONE, 56, "<Q", 0xA011), "one kind of compression"),
        (field(ONE, 56, "<Q", 0x2011), "a compressed size"),
        (ONE[:10], "bytes of region header"),
    ],
)
def test_what_a_malformed_container_is_told(data, says):
    with pytest.raises(FatbinError) as caught:
        parse_fatbin(data)
    assert says in str(caught.value)
    assert caught.value.remedy


def test_a_range_outside_the_file():
    with pytest.raises(FatbinError, match="outside its file"):
        parse_fatbin(ONE, 0, len(ONE) + 1)


@pytest.mark.parametrize("claimed", [1, 999, 1 << 40, (1 << 64) - 1])
@pytest.mark.parametrize("flag", [0x2000, 0x8000])
def test_a_lie_about_the_unpacked_size_costs_nothing(flag, claimed):
    plain = bytes(1000)
    if flag == 0x2000:
        packed = lz4.block.compress(plain, store_size=False)
    else:
        packed = zstandard.ZstdCompressor().compress(plain)
    honest = pack_region([pack_entry(2, 75, packed, flags=0x11 | flag, unpacked=1000)])
    assert unpack(honest, entries_of(honest)[0]) == plain
    data = pack_region([pack_entry(2, 75, packed, flags=0x11 | flag, unpacked=claimed)])
    with pytest.raises(FatbinError):
        unpack(data, entries_of(data)[0])


def test_a_cubin_for_another_architecture_than_its_entry_says():
    data = (FATBINS / "cuda12.4-plain.fatbin").read_bytes()
    cubin = next(unpack(data, e) for e in entries_of(data) if e.architecture == "sm_90")
    lying = pack_region([pack_entry(2, 75, cubin)])
    assert check_cubin(lying, entries_of(lying)[0]) == "its payload is a cubin for sm_90"
    noise = pack_region([pack_entry(2, 75, b"x" * 64)])
    assert check_cubin(noise, entries_of(noise)[0]) == "its payload is not a CUDA ELF file"
