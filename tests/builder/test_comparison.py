"""Two wheels compared: the place of every change is named, and a reason only where it accounts."""

import io
import json
import shutil
import subprocess
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.cli import main
from builder.comparison import Comparison, compare_wheels
from builder.comparison.content import compare_bytecode
from builder.comparison.elf import compare_elf
from builder.comparison.model import Side
from builder.comparison.reasons import explain
from builder.elf_layout import Layout
from builder.fatbin import iter_entries, parse_fatbin
from tests.builder.audit_material import (
    compile_library,
    pack_entry,
    pack_region,
    wheel_members,
)

PTX, CUBIN = 1, 2
MODULE = "demo_pkg/_C.abi3.so"
RECORD = "demo_pkg-1.2+cu128.sm75.dist-info/RECORD"
TEXT = b".version 8.0\n.visible .entry add_one(\n)\n{ ret; }\n"


class Module(bytes):
    """Its bytes; failing properties shall not print them."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"


@pytest.fixture(scope="module")
def module(tmp_path_factory) -> Module:
    """A shared object with code, strings, a build-id, and device code in two regions."""
    folder = tmp_path_factory.mktemp("module")
    noise = b"\x7fELF" + bytes(range(7, 256)) * 4
    regions = [
        pack_region([pack_entry(CUBIN, 75, noise), pack_entry(PTX, 75, TEXT)]),
        pack_region([pack_entry(CUBIN, 75, noise[::-1]), pack_entry(CUBIN, 80, noise * 2)]),
    ]
    (folder / "code.fatbin").write_bytes(b"".join(regions))
    source = (
        f'__asm__(".section .nv_fatbin,\\"a\\"\\n.align 8\\n.incbin'
        f' \\"{folder / "code.fatbin"}\\"\\n.text\\n");\n'
        'const char *where(void) { return "compiled in /tmp/one/place on 2026-11-30"; }\n'
        "int table[64] = {1, 2, 3}; void *PyInit__C(void) { return table; }\n"
    )
    path = compile_library(folder, "_C.abi3.so", source, "-Wl,--build-id=sha1")
    return Module(path.read_bytes())


def write(path: Path, members: dict[str, bytes], **facts) -> Path:
    """A wheel with these members in this order; `facts` are set on every ZipInfo."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, (2026, 3, 31, 0, 43, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o100644 << 16
            for key, value in facts.items():
                setattr(info, key, value)
            archive.writestr(info, data)
    return path


def pair(folder: Path, a: dict[str, bytes], b: dict[str, bytes]) -> Comparison:
    """Two whole wheels, each with a true RECORD."""
    ours, theirs = (write(folder / n, wheel_members(m)) for n, m in (("a.whl", a), ("b.whl", b)))
    return compare_wheels(ours, theirs)


def replaced(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    assert len(old) == len(new)
    return data.replace(old, new)


def member(found: Comparison, path: str):
    return next(m for m in found.members if m.path == path)


# ---- members ---------------------------------------------------------------------------------


def test_the_same_bytes_are_identical(module, tmp_path):
    found = pair(tmp_path, {MODULE: module}, {MODULE: module})
    assert (found.verdict, found.members, found.archive) == ("identical", (), ())


def test_a_changed_module_is_named_with_its_section_and_record_follows(module, tmp_path):
    changed = replaced(module, b"compiled in /tmp/one/place", b"compiled in /srv/two/place")
    found = pair(tmp_path, {MODULE: module, "x.py": b""}, {MODULE: changed, "x.py": b""})
    assert found.verdict == "different"
    assert [m.path for m in found.members] == [MODULE, RECORD]
    (part,) = member(found, MODULE).parts
    assert (part.where, part.reasons) == (".rodata", ("build-path",))
    assert part.what.startswith("6 of ")
    assert any("/srv/two/place" in line for line in part.lines)
    (rows,) = member(found, RECORD).parts
    assert (rows.reasons, rows.lines) == (("follows",), (MODULE,))
    assert found.unexplained == ()
    assert found.same == 3


def test_an_entry_of_device_code_is_named_with_architecture_and_kernel(module, tmp_path):
    changed = replaced(module, b"{ ret; }", b"{ bad; }")
    (part,) = member(pair(tmp_path, {MODULE: module}, {MODULE: changed}), MODULE).parts
    assert part.where == ".nv_fatbin region 0 entry 1, compute_75 (add_one) line 4"
    assert part.reasons == ()
    assert "+{ bad; }" in part.lines


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_every_flipped_byte_is_found_in_its_section_or_entry(module, data):
    layout = Layout.read(module)
    sections = [s for s in layout.sections if s.stored and s.label not in (".shstrtab", "")]
    section = data.draw(st.sampled_from(sections))
    at = section.offset + data.draw(st.integers(0, section.stored - 1))
    new = bytearray(module)
    new[at] ^= data.draw(st.integers(1, 255))
    parts = compare_elf(module, bytes(new))
    assert {part.where.split()[0] for part in parts} == {section.label}
    if section.label == ".nv_fatbin" and "damaged" not in parts[0].what:
        regions = parse_fatbin(module, section.offset, section.offset + section.size)
        for entry in iter_entries(regions):
            if entry.payload_offset <= at < entry.end:
                assert entry.architecture in parts[0].where
    # Paths, times and the compiler's name are in these two alone.
    if section.label not in (".rodata", ".comment", ".note.gnu.build-id"):
        assert not any(part.reasons for part in parts)


def test_entries_in_another_order_and_entries_that_are_gone(module):
    layout = Layout.read(module)
    (code,) = (s for s in layout.sections if s.label == ".nv_fatbin")
    first, second = parse_fatbin(module, code.offset, code.offset + code.size)
    raw = [module[r.offset : r.end] for r in (first, second)]
    swapped = bytearray(module)
    swapped[code.offset : code.offset + code.size] = (raw[1] + raw[0]).ljust(code.size, b"\0")
    if len(raw[0]) + len(raw[1]) == code.size:
        (part,) = compare_elf(module, bytes(swapped))
        assert part.reasons == ("ordering",)
    gone = bytearray(module)
    gone[code.offset : code.offset + code.size] = raw[0].ljust(code.size, b"\0")
    parts = compare_elf(module, bytes(gone))
    assert [p.what for p in parts] == ["only in a", "only in a"]
    assert "region 1 entry 1, sm_80" in parts[1].where


def test_members_that_one_wheel_lacks(tmp_path):
    found = pair(tmp_path, {"a.py": b"1", "c.py": b"3"}, {"b.py": b"2", "c.py": b"3"})
    assert {m.path: m.change for m in found.members} == {
        "a.py": "only-in-a",
        "b.py": "only-in-b",
        RECORD: "changed",
    }


def test_text_is_a_short_diff(tmp_path):
    a, b = b"one\ntwo\nthree\n", b"one\n2\nthree\n"
    (part,) = member(pair(tmp_path, {"x.py": a}, {"x.py": b}), "x.py").parts
    assert part.where == "line 2"
    assert part.lines == ("@@ -2 +2 @@", "-two", "+2")
    (part,) = member(pair(tmp_path, {"x.py": a}, {"x.py": b"three\ntwo\none\n"}), "x.py").parts
    assert part.reasons == ("ordering",)


def test_a_bill_of_materials_follows_its_modules(module, tmp_path):
    def wheel(code: bytes, serial: str, name: str = "demo") -> dict[str, bytes]:
        bill = {
            "serialNumber": f"urn:uuid:{serial}",
            "name": name,
            "hash": sha256(code).hexdigest(),
        }
        path = "demo_pkg-1.2+cu128.sm75.dist-info/sboms/x.cdx.json"
        return {MODULE: code, path: json.dumps(bill, indent=1).encode()}

    one, other = (f"{digit * 8}-1111-5111-8111-111111111111" for digit in "ab")
    changed = replaced(module, b"2026-11-30", b"2026-12-01")
    found = pair(tmp_path, wheel(module, one), wheel(changed, other))
    assert found.unexplained == ()
    found = pair(tmp_path, wheel(module, one), wheel(changed, other, name="else"))
    assert [Path(path).name for path in found.unexplained] == ["x.cdx.json"]


def test_a_record_that_is_not_true_of_its_wheel_is_named(tmp_path):
    members = wheel_members({"x.py": b"honest"})
    ours = write(tmp_path / "a.whl", members)
    theirs = write(tmp_path / "b.whl", {**members, "x.py": b"hidden"})
    found = compare_wheels(ours, theirs)
    assert [m.path for m in found.members] == ["x.py"]  # RECORD itself is the same
    lying = members[RECORD].replace(b"sha256=", b"sha256=AAAA", 1)
    lying = lying.replace(lying.split(b"sha256=AAAA")[1][:4], b"", 1)
    found = compare_wheels(ours, write(tmp_path / "c.whl", {**members, RECORD: lying}))
    (part,) = member(found, RECORD).parts
    assert part.what == "is not that of the member in b"
    assert part.where == "row x.py"
    assert found.unexplained == (RECORD,)


def test_bytecode_by_the_time_in_its_head():
    head = b"\xcb\r\r\n\0\0\0\0"
    part = compare_bytecode(head + b"\1\1\1\1size" + b"code", head + b"\2\2\2\2size" + b"code")
    assert part.reasons == ("time-stamp",)
    assert not compare_bytecode(head + b"\1" * 8 + b"code", head + b"\2" * 8 + b"else").reasons


# ---- the archive -----------------------------------------------------------------------------


def test_what_differs_in_the_zip_file_alone(tmp_path):
    members = {f"p/{n}.py": b"text " * 50 for n in "abc"}
    ours = write(tmp_path / "a.whl", members)
    for facts, where, reasons in (
        ({"date_time": (2026, 11, 30, 1, 2, 4)}, "time stamps", ("time-stamp",)),
        ({"external_attr": 0o100600 << 16}, "permissions", ("file-mode",)),
        ({"compress_type": zipfile.ZIP_STORED}, "compression", ("packing",)),
    ):
        found = compare_wheels(ours, write(tmp_path / "b.whl", members, **facts))
        assert [(p.where, p.reasons) for p in found.archive] == [(where, reasons)]
        assert (found.verdict, found.members, found.same) == ("different", (), 3)
    theirs = write(tmp_path / "b.whl", dict(reversed(members.items())))
    assert compare_wheels(ours, theirs).archive[0].reasons == ("ordering",)
    shutil.copy(ours, tmp_path / "c.whl")
    with zipfile.ZipFile(tmp_path / "c.whl", "a") as archive:
        archive.comment = b"hello"
    (part,) = compare_wheels(ours, tmp_path / "c.whl").archive
    assert part.where == "comment"
    assert part.reasons == ()


def test_a_member_that_is_there_twice_is_seen(tmp_path):
    ours = write(tmp_path / "a.whl", {"x.py": b"1"})
    theirs = write(tmp_path / "b.whl", {"x.py": b"1"})
    with zipfile.ZipFile(theirs, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("x.py", b"2")
    assert [(m.path, m.change) for m in compare_wheels(ours, theirs).members] == [
        ("x.py (2)", "only-in-b")
    ]


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_whatever_the_bytes_there_is_an_answer(tmp_path_factory, data):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in wheel_members({"x.py": b"text\n" * 9, "y.so": b"\x7fELF"}).items():
            archive.writestr(zipfile.ZipInfo(name), content)
    whole = buffer.getvalue()
    new = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        new[data.draw(st.integers(0, len(new) - 1))] = data.draw(st.integers(0, 255))
    new = new[: data.draw(st.integers(0, len(new)))] if data.draw(st.booleans()) else new
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "a.whl").write_bytes(whole)
    (folder / "b.whl").write_bytes(new)
    found = compare_wheels(folder / "a.whl", folder / "b.whl")
    assert (found.verdict == "identical") == (whole == bytes(new))
    if found.verdict == "different":
        assert found.members or found.archive
    found.text(), found.to_dict()


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_hostile_modules_end_in_parts(module, data):
    new = bytearray(module)
    for _ in range(data.draw(st.integers(1, 8))):
        new[data.draw(st.integers(0, 2047))] = data.draw(st.integers(0, 255))
    if bytes(new) != module:
        assert compare_elf(module, bytes(new))


# ---- reasons ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "reasons"),
    [
        (b"x tmpxft_0000012a_00000000-6_k", b"x tmpxft_00000f2a_00000000-6_k", ("process-id",)),
        (b"at 10:11:12", b"at 10:11:13", ("time-stamp",)),
        (b"Nov 30 2026", b"Dec  1 2026", ("time-stamp",)),
        (b"GCC: (Debian 12.2.0-14) 12.2.0", b"GCC: (Debian 12.2.0-15) 12.2.0", ("compiler",)),
        (b"/a/b/c.cu 2026-01-01", b"/x/c.cu 2026-01-02", ("time-stamp", "build-path")),
        (b"2026-01-01 and one", b"2026-01-02 and two", ()),
        (b"", b"2026-01-02", ()),
    ],
)
def test_a_reason_accounts_for_everything_or_is_not_given(a, b, reasons):
    assert explain(a, b) == reasons


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc here")
def test_what_nvcc_makes_of_a_source_without_an_external_name(tmp_path):
    """Real module ids: the same source in two folders, compiled by two processes."""
    source = (
        "template <typename T> __global__ void scale(T *x) { x[threadIdx.x] *= 2; }\n"
        "template __global__ void scale<float>(float *);\n"
        "namespace { __global__ void touch(int *p) { *p = 1; } }\n"
        "template <typename T> void go(T *x) { touch<<<1, 1>>>(reinterpret_cast<int *>(x)); }\n"
        "template void go<float>(float *);\n"
    )
    made = []
    for name in ("one", "another"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "k.cu").write_text(source)
        command = ["nvcc", "-arch=sm_75", "-shared", "-Xcompiler", "-fPIC", "-cudart=none"]
        subprocess.run([*command, "-o", "k.so", "k.cu"], cwd=tmp_path / name, check=True)
        made.append((tmp_path / name / "k.so").read_bytes())
    parts = compare_elf(*made)
    device = [p for p in parts if p.where.startswith(".nv_fatbin")]
    assert {p.reasons for p in device} == {("module-id",)}
    assert any("sm_75 (" in p.where and "touch" in p.where for p in device)
    reasons = {p.where: p.reasons for p in parts}
    assert reasons[".rodata"] == ("module-id",)
    assert set(reasons[".strtab"]) == {"module-id", "process-id"}
    assert reasons[".symtab"] == ("follows",)
    assert all(p.reasons for p in parts)


# ---- the command -----------------------------------------------------------------------------


def test_the_command(tmp_path):
    ours, theirs = (write(tmp_path / f"{n}.whl", {"x.py": n.encode()}) for n in "ab")
    run = CliRunner().invoke
    same = run(main, ["compare", str(ours), str(ours), "--json"])
    assert (same.exit_code, '"identical"' in same.output) == (0, True)
    other = run(main, ["compare", str(ours), str(theirs)])
    assert other.exit_code == 6
    assert "x.py (text): changed" in other.output
    assert run(main, ["compare", str(ours), str(tmp_path / "none.whl")]).exit_code == 3
    (tmp_path / "no.whl").write_bytes(b"no zip")
    assert run(main, ["compare", str(ours), str(tmp_path / "no.whl")]).exit_code == 6


def test_long_lists_are_cut_and_counted():
    side = Side("0" * 64, 1)
    from builder.comparison.model import Member, Part

    parts = tuple(Part(f"line {n}", "differs") for n in range(100))
    members = tuple(Member(f"{n}.py", "text", "changed", side, side, parts) for n in range(300))
    tree = Comparison("different", side, side, (), members).to_dict()
    assert tree["membersDifferent"] == 300
    assert (len(tree["members"]), tree["members"][0]["partCount"]) == (100, 100)
