"""Hostile and spoilt wheels are refused, by name, before anything is written."""

import stat
import struct
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg.errors import ContractError, VerificationError
from kvreg.wheel.archive import WheelArchive, name_problems
from kvreg.wheel.plan import check_together, plan_wheel
from kvreg.wheel.record import RecordRow, read_record, write_record
from kvreg.wheel.scripts import read_entry_points, rewritten, shebang
from kvreg.wheel.staging import stage
from kvreg.wheel.tags import check_tags, parse_wheel_name
from tests.kvreg.profiles import make_profile
from tests.support.wheels import write_wheel

INFO = "demo_pkg-1.2+cu128.sm75.dist-info"
RECORD = f"{INFO}/RECORD"


def stage_wheel(path, site):
    with WheelArchive(path, parse_wheel_name(path.name)) as archive:
        plan = plan_wheel(archive, requested=True)
        site.mkdir()
        return stage(plan, site, "/usr/bin/python3")


def add_unlisted(files):
    files["demo_pkg/extra.py"] = b"evil = 1\n"


def change_member(files):
    files["demo_pkg/__init__.py"] = files["demo_pkg/__init__.py"].replace(b"1.2", b"6.6")


def grow_member(files):
    files["demo_pkg/__init__.py"] += b"import os\n"


def drop_member(files):
    del files["demo_pkg/data.bin"]


def drop_record(files):
    del files[RECORD]


def drop_metadata(files):
    del files[f"{INFO}/METADATA"]


def weaken(files):
    lines = files[RECORD].decode().splitlines(keepends=True)
    files[RECORD] = "".join(["demo_pkg/__init__.py,md5=AAAA,31\n", *lines[1:]]).encode()


def unhash(files):
    lines = files[RECORD].decode().splitlines(keepends=True)
    files[RECORD] = "".join(["demo_pkg/__init__.py,,\n", *lines[1:]]).encode()


def list_twice(files):
    files[RECORD] += files[RECORD].splitlines(keepends=True)[0]


def garble(files):
    files[RECORD] = b'"\xff'


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (add_unlisted, r"demo_pkg/extra.py: is in the wheel and not in RECORD"),
        (change_member, r"demo_pkg/__init__.py: does not match RECORD"),
        (grow_member, r"demo_pkg/__init__.py: has another size in RECORD"),
        (drop_member, r"demo_pkg/data.bin: is in RECORD and not in the wheel"),
        (drop_record, r"RECORD: is missing"),
        (drop_metadata, r"METADATA: is missing"),
        (weaken, r"md5"),
        (unhash, r"demo_pkg/__init__.py: has no hash"),
        (list_twice, r"listed twice"),
        (garble, r"not CSV"),
    ],
)
def test_a_wheel_that_disagrees_with_its_record(tmp_path, spoil, said):
    wheel = write_wheel(tmp_path, spoil=spoil)
    with pytest.raises(VerificationError, match=said):
        stage_wheel(wheel, tmp_path / "site")


def test_all_faults_are_named_at_once(tmp_path):
    def spoil(files):
        add_unlisted(files)
        drop_member(files)
        grow_member(files)

    with pytest.raises(VerificationError) as caught:
        stage_wheel(write_wheel(tmp_path, spoil=spoil), tmp_path / "site")
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    "name",
    [
        "../evil.py",
        "demo_pkg/../../evil.py",
        "/etc/evil",
        "demo_pkg//evil.py",
        "./evil.py",
        "C:/evil.py",
        "demo_pkg\\evil.py",
        "demo_pkg/a\nb.py",
        "demo_pkg/__INIT__.py",
        "DEMO_PKG/other.py",
        "demo_pkg/__init__.py/inside.py",
        "demo_pkg",
        "demo_pkg/\u00e4.py|demo_pkg/a\u0308.py",
    ],
)
def test_names_that_escape_or_collide(tmp_path, name):
    wheel = write_wheel(tmp_path, extra=dict.fromkeys(name.split("|"), b"x = 1\n"))
    with pytest.raises(VerificationError, match="is refused"):
        stage_wheel(wheel, tmp_path / "site")


def test_a_member_that_is_there_twice(tmp_path):
    wheel = write_wheel(tmp_path)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("demo_pkg/__init__.py", b"second = 1\n")
    with pytest.raises(VerificationError, match=r"__init__.py: is in the wheel twice"):
        stage_wheel(wheel, tmp_path / "site")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFDIR])
def test_links_and_special_files(tmp_path, kind):
    wheel = write_wheel(
        tmp_path,
        mode=lambda path: (kind if path.endswith("data.bin") else stat.S_IFREG) | 0o644,
    )
    with pytest.raises(VerificationError, match=r"data\.bin: is a link or special file"):
        stage_wheel(wheel, tmp_path / "site")


def test_encrypted_and_unusually_compressed_members(tmp_path):
    wheel = write_wheel(tmp_path)
    raw = bytearray(wheel.read_bytes())
    central = raw.index(b"PK\x01\x02")
    struct.pack_into("<H", raw, central + 8, 1)
    wheel.write_bytes(raw)
    with pytest.raises(VerificationError, match="encrypted"):
        stage_wheel(wheel, tmp_path / "site")
    struct.pack_into("<HH", raw, central + 8, 0, zipfile.ZIP_LZMA)
    wheel.write_bytes(raw)
    with pytest.raises(VerificationError, match="unusual"):
        stage_wheel(wheel, tmp_path / "site")


def test_overlapping_members(tmp_path):
    """Many central entries that share one member's data, as a zip bomb has."""
    data = bytes(200_000)
    wheel = write_wheel(tmp_path, extra={"demo_pkg/zeros": data})
    with zipfile.ZipFile(wheel, "a") as archive:
        shared = archive.getinfo("demo_pkg/zeros")
        for number in range(50):
            info = zipfile.ZipInfo(f"demo_pkg/more{number}")
            info.compress_type, info.CRC = shared.compress_type, shared.CRC
            info.compress_size, info.file_size = shared.compress_size, shared.file_size
            info.header_offset = shared.header_offset
            archive.filelist.append(info)
        archive._didModify = True
    with pytest.raises(VerificationError, match="overlap"):
        stage_wheel(wheel, tmp_path / "site")


@pytest.mark.parametrize("keep", [0, 10, 1000])
def test_a_truncated_archive(tmp_path, keep):
    wheel = write_wheel(tmp_path)
    wheel.write_bytes(wheel.read_bytes()[:keep])
    with pytest.raises(VerificationError, match="not a zip archive"):
        stage_wheel(wheel, tmp_path / "site")


def test_damaged_compressed_data(tmp_path):
    wheel = write_wheel(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        offset = archive.getinfo("demo_pkg/data.bin").header_offset
    raw = bytearray(wheel.read_bytes())
    raw[offset + 60 : offset + 70] = b"\xff" * 10
    wheel.write_bytes(raw)
    with pytest.raises(VerificationError, match=r"data\.bin"):
        stage_wheel(wheel, tmp_path / "site")


def test_metadata_of_another_package(tmp_path):
    def rename(files):
        old = files[f"{INFO}/METADATA"]
        files[f"{INFO}/METADATA"] = old.replace(b"demo_pkg", b"demo_pkh").replace(b"1.2", b"1.3")

    with pytest.raises(VerificationError) as caught:
        stage_wheel(write_wheel(tmp_path, spoil=rename), tmp_path / "site")
    assert "Name differs" in str(caught.value)
    assert "Version differs" in str(caught.value)


def test_a_file_name_that_is_not_the_wheels(tmp_path):
    wheel = write_wheel(tmp_path)
    other = wheel.rename(tmp_path / "other-2-py3-none-any.whl")
    with pytest.raises(VerificationError, match="dist-info"):
        stage_wheel(other, tmp_path / "site")


@pytest.mark.parametrize(
    "name",
    [
        "torch/__init__.py",
        "numpy.py",
        "nvidia/nccl/lib/libnccl.so.2",
        "triton.cpython-312-x86_64-linux-gnu.so",
        "sitecustomize.py",
        "json/__init__.py",
        "demo_pkg-1.2+cu128.sm75.data/purelib/torch/cuda.py",
    ],
)
def test_modules_of_the_host_are_not_shadowed(tmp_path, name):
    with pytest.raises(ContractError, match="shadow"):
        stage_wheel(write_wheel(tmp_path, extra={name: b""}), tmp_path / "site")


def test_unknown_data_scheme_and_colliding_targets(tmp_path):
    data = "demo_pkg-1.2+cu128.sm75.data"
    with pytest.raises(VerificationError, match="unknown part"):
        stage_wheel(write_wheel(tmp_path, extra={f"{data}/odd/file": b""}), tmp_path / "site")
    wheel = write_wheel(tmp_path, extra={f"{data}/platlib/demo_pkg/__init__.py": b""})
    with pytest.raises(VerificationError, match="twice"):
        stage_wheel(wheel, tmp_path / "site")


@pytest.mark.parametrize(
    "text",
    [
        "../../evil = demo_pkg:main",
        "a/b = demo_pkg:main",
        "x = demo_pkg",
        "x = os; evil:main",
        "x =",
    ],
)
def test_entry_points_that_are_no_scripts(tmp_path, text):
    wheel = write_wheel(tmp_path, entry_points=f"[console_scripts]\n{text}\n")
    with pytest.raises(VerificationError, match="not a script"):
        stage_wheel(wheel, tmp_path / "site")


def test_two_wheels_with_different_files_of_one_name(tmp_path):
    one = write_wheel(tmp_path, "one", "1", "py3-none-any", extra={"tests/__init__.py": b""})
    same = write_wheel(tmp_path, "same", "1", "py3-none-any", extra={"tests/__init__.py": b""})
    other = write_wheel(tmp_path, "other", "1", "py3-none-any", extra={"tests/__init__.py": b"1"})

    def plans(*wheels):
        archives = [WheelArchive(wheel, parse_wheel_name(wheel.name)) for wheel in wheels]
        return [plan_wheel(archive, requested=False) for archive in archives]

    check_together(plans(one, same))
    with pytest.raises(VerificationError, match=r"tests/__init__.py: is also, differently, in one"):
        check_together(plans(one, other))


@pytest.mark.parametrize(
    ("tag", "fits"),
    [
        ("cp312-cp312-linux_x86_64", True),
        ("cp38-abi3-manylinux_2_31_x86_64", True),
        ("cp312-abi3-manylinux_2_35_x86_64", True),
        ("py3-none-any", True),
        ("py2.py3-none-any", True),
        ("cp312-none-manylinux2014_x86_64.manylinux_2_17_x86_64", True),
        ("cp313-abi3-linux_x86_64", False),
        ("cp313-cp313-linux_x86_64", False),
        ("cp311-cp311-linux_x86_64", False),
        ("cp312-cp312-manylinux_2_36_x86_64", False),
        ("cp312-cp312-linux_aarch64", False),
        ("cp312-cp312-musllinux_1_2_x86_64", False),
        ("cp312-cp312-win_amd64", False),
        ("cp312-cp312t-linux_x86_64", False),
    ],
)
def test_tags_are_judged_for_the_profiles_host(tmp_path, tag, fits):
    name = parse_wheel_name(f"demo_pkg-1.2+cu128.sm75-{tag}.whl")
    cp312 = 'python_tag = { require = "cp312", validated = "cp312" }'
    profile = make_profile(tmp_path, python_tag=cp312)
    if fits:
        check_tags(name, profile)
    else:
        with pytest.raises(ContractError, match="cannot be loaded"):
            check_tags(name, profile)


@pytest.mark.parametrize(
    "name",
    ["", "x.whl", "../a-1-py3-none-any.whl", "a-1-py3-none-any.zip", "a-x!-py3-none-any.whl"],
)
def test_what_is_no_wheel_name(name):
    with pytest.raises(VerificationError):
        parse_wheel_name(name)


paths = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)
rows = st.builds(
    RecordRow,
    paths,
    st.just("sha256"),
    st.binary(min_size=32, max_size=32),
    st.integers(0, 10**12),
)


@given(st.lists(rows, unique_by=lambda row: row.path, max_size=6))
def test_record_survives_a_round_trip(items):
    found, problems = read_record(write_record(items), "RECORD")
    assert not problems
    assert found == {row.path: row for row in items}


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_a_problem(raw):
    read_record(raw, "RECORD")
    read_entry_points(raw, "entry_points.txt")


@given(st.text("aC./\\:\n\x7f\u00e4", min_size=1, max_size=8))
def test_a_name_is_inside_when_every_part_of_it_is(name):
    parts = name.removesuffix("/").split("/")
    drive = len(name) > 1 and name[1] == ":" and name[0].isascii() and name[0].isalpha()
    inside = not drive and all(
        part not in ("", ".", "..") and not set(part) & set("\\\n\x7f") for part in parts
    )
    assert bool(list(name_problems([name]))) != inside


@given(st.lists(st.text("aA./\\\u00e4\u0308", min_size=1, max_size=6), max_size=5))
def test_names_without_problems_make_distinct_files_inside(tmp_path_factory, names):
    if list(name_problems(names)):
        return
    root = tmp_path_factory.mktemp("names")
    for name in names:
        target = root / name
        if name.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x"):
            assert target.resolve().is_relative_to(root.resolve())


def test_interpreter_lines():
    assert (
        rewritten(b"#!python -u\nprint()\n", "/usr/bin/python3") == b"#!/usr/bin/python3\nprint()\n"
    )
    assert rewritten(b"#!/bin/sh\n", "/usr/bin/python3") == b"#!/bin/sh\n"
    assert shebang("/a b/python").startswith(b"#!/bin/sh\n'''exec' \"/a b/python\"")
    assert shebang("/" + "x" * 200).startswith(b"#!/bin/sh\n")
