"""Thinning: real shared objects with device code that nvcc made, and what must never happen."""

import ctypes
import hashlib
import json
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.audit import audit_wheel
from builder.audit.elf import read_elf
from builder.audit.wheel import Wheel
from builder.cli import main
from builder.elf_layout import PT_LOAD, Layout
from builder.fatbin import iter_entries, parse_fatbin
from builder.fatbin_choice import choose, parse_capability, runs, used
from builder.thin import thin_wheel
from builder.thin_check import check_module
from builder.thin_module import plan_module, thin_module
from builder.thin_plan import Wanted
from kvreg.errors import ContractError, VerificationError
from kvreg.model.profile import Omission, profile_from_canonical
from kvreg.wheel.archive import WheelArchive
from kvreg.wheel.tags import parse_wheel_name
from tests.builder.audit_material import FATBINS, demo_profile, pack_entry, pack_region, write_wheel

PTX, CUBIN = 1, 2
ARCH_SPECIFIC, FAMILY = 0x100011, 0x200011
UPSTREAM, THIN = "1.2", "1.2+thin.sm75"


def entries_of(*packed):
    return list(iter_entries(parse_fatbin(pack_region(list(packed)))))


def names(entries):
    return [entry.architecture for entry in entries]


# ---- which code a GPU uses -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ("7.5", ["sm_75"]),
        ("8.0", ["sm_80"]),
        ("8.9", ["sm_86"]),  # the highest of its major version
        ("9.0", ["sm_90", "sm_90a"]),
        ("10.0", ["sm_100f"]),
        ("10.3", ["sm_100f"]),
        ("12.1", ["compute_90"]),  # nothing runs as it is: the newest PTX is compiled
        ("7.0", ["compute_52"]),
        ("5.0", []),
    ],
)
def test_what_the_driver_takes(gpu, expected):
    entries = entries_of(
        pack_entry(CUBIN, 75, b"a" * 8),
        pack_entry(CUBIN, 80, b"b" * 8),
        pack_entry(CUBIN, 86, b"c" * 8),
        pack_entry(CUBIN, 90, b"d" * 8),
        pack_entry(CUBIN, 90, b"e" * 8, flags=ARCH_SPECIFIC),
        pack_entry(CUBIN, 100, b"f" * 8, flags=FAMILY),
        pack_entry(PTX, 52, b"g" * 8),
        pack_entry(PTX, 90, b"h" * 8),
        pack_entry(PTX, 90, b"i" * 8, flags=ARCH_SPECIFIC),
    )
    assert names(used(entries, parse_capability(gpu))) == expected


def test_code_for_one_architecture_alone_runs_nowhere_else():
    (entry,) = entries_of(pack_entry(CUBIN, 100, b"x" * 8, flags=ARCH_SPECIFIC))
    assert runs(entry, (10, 0))
    assert not runs(entry, (10, 3))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([PTX, CUBIN]), st.sampled_from([52, 70, 75, 80, 86, 90, 100, 120])
        ),
        max_size=8,
    ),
    st.sampled_from([(7, 5), (8, 9), (9, 0), (12, 0)]),
)
def test_what_is_kept_is_what_the_gpu_uses_of_the_whole(content, gpu):
    packed = pack_region([pack_entry(k, sm, bytes([i]) * 16) for i, (k, sm) in enumerate(content)])
    (region,) = parse_fatbin(packed)
    choice = choose(region, [gpu])
    assert used(choice.entries, gpu) == used(region.entries, gpu) == choice.entries
    assert sorted(e.offset for e in (*choice.entries, *choice.removed)) == [
        e.offset for e in region.entries
    ]


def cubin(sm: int, seed: str, size: int) -> bytes:
    """The header of a cubin for an architecture, and noise."""
    head = bytearray(64)
    head[:8] = b"\x7fELF\x02\x01\x01\x33"
    head[18:20], head[48:52] = (190).to_bytes(2, "little"), sm.to_bytes(4, "little")
    return bytes(head) + hashlib.shake_128(seed.encode()).digest(size - len(head))


# ---- one module ------------------------------------------------------------------------------

SOURCE = """
#include <stdexcept>
extern "C" {
struct wrapper { unsigned magic, version; const unsigned char *data; void *more; };
extern const unsigned char first_code[], second_code[], third_code[];
const wrapper wrappers[3] __attribute__((section(".nvFatBinSegment"))) = {
    {0x466243b1, 1, first_code, 0},
    {0x466243b1, 1, second_code, 0},
    {0x466243b1, 1, third_code, 0}};
const unsigned char *code(int i) { return wrappers[i].data; }
static int seven = 7;
int *relocated[2] = {&seven, &seven};
thread_local int mine = 5;
int answer(int i) {
    try { if (i) throw std::runtime_error("unwound"); return *relocated[0] + mine; }
    catch (const std::runtime_error &error) { return error.what()[0]; }
}
void *PyInit__C(void) { return 0; }
}
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory) -> Path:
    """A C++ module with three large fat binaries, wrappers, exceptions, TLS and relocations."""
    folder = tmp_path_factory.mktemp("module")
    regions = {
        "first": [
            (CUBIN, 75, 20_000),
            (CUBIN, 80, 300_000),
            (CUBIN, 90, 200_000),
            (PTX, 80, 90_000),
        ],
        "second": [(CUBIN, 80, 150_000), (PTX, 80, 60_000)],
        "third": [(CUBIN, 75, 9_000), (CUBIN, 75, 7_000), (CUBIN, 120, 400_000)],
    }
    assembly = ['.section .nv_fatbin,"a"', ".align 8"]
    for name, content in regions.items():
        entries = [
            pack_entry(kind, sm, cubin(sm, f"{name}{i}", size))
            for i, (kind, sm, size) in enumerate(content)
        ]
        (folder / f"{name}.fatbin").write_bytes(pack_region(entries))
        assembly += [f".globl {name}_code", f".hidden {name}_code", f"{name}_code:"]
        assembly += [f'.incbin "{folder / name}.fatbin"', ".align 8"]
    (folder / "code.S").write_text(
        "\n".join([*assembly, '.section .note.GNU-stack,"",%progbits', ""])
    )
    (folder / "module.cpp").write_text(SOURCE)
    path = folder / "_C.abi3.so"
    subprocess.run(
        ["g++", "-shared", "-fPIC", "-O1", "-o", path, folder / "module.cpp", folder / "code.S"],
        check=True,
    )
    return path


def thinned(path: Path, gpu: str = "7.5", **options) -> bytes:
    data = path.read_bytes()
    plan = plan_module(path.name, data, [parse_capability(gpu)], **options)
    new = thin_module(data, plan)
    assert new is not None
    check_module(data, new, plan)
    return new


def test_the_file_shrinks_and_the_other_sections_stay(module):
    old, new = module.read_bytes(), thinned(module)
    assert len(old) - len(new) > 1_100_000
    before, after = Layout.read(old), Layout.read(new)
    for one, other in zip(before.sections, after.sections, strict=False):
        if one.label != ".nv_fatbin":
            assert replace(other, offset=one.offset) == one
            assert (
                new[other.offset : other.offset + other.stored]
                == (old[one.offset : one.offset + one.stored])
            )
    extra = after.sections[len(before.sections) :]
    assert {section.label for section in extra} == {".nv_fatbin"}
    loads = [s for s in after.segments if s.type == PT_LOAD]
    assert len(loads) > sum(s.type == PT_LOAD for s in before.segments)


def test_the_audit_reads_what_is_left(module):
    facts = read_elf(thinned(module))
    data = thinned(module)
    regions = [r for start, end in facts.fatbin for r in parse_fatbin(data, start, end)]
    assert [names(r.entries) for r in regions] == [["sm_75"], [], ["sm_75", "sm_75"]]


def test_it_loads_and_everything_in_it_works(module, tmp_path):
    path = tmp_path / "_C.abi3.so"
    path.write_bytes(thinned(module))
    library = ctypes.CDLL(str(path))
    assert library.answer(0) == 12
    assert library.answer(1) == ord("u")  # an exception, thrown and caught
    library.code.restype = ctypes.c_void_p
    data = path.read_bytes()
    regions = [r for s, e in read_elf(data).fatbin for r in parse_fatbin(data, s, e)]
    for number, region in enumerate(regions):
        # Through the wrapper's relocated pointer, as the CUDA runtime finds it.
        found = ctypes.string_at(library.code(number), region.size)
        assert found == data[region.offset : region.end]


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf here")
def test_readelf_has_nothing_to_say_against_it(module, tmp_path):
    path = tmp_path / "_C.abi3.so"
    path.write_bytes(thinned(module))
    ended = subprocess.run(["readelf", "-aW", path], capture_output=True, text=True, check=True)
    assert ended.stderr == ""


def test_the_same_module_comes_out_again_and_a_thin_one_stays(module, tmp_path):
    new = thinned(module)
    assert thinned(module) == new
    again = plan_module("x", new, [(7, 5)])
    assert thin_module(new, again) is None


def test_without_ptx_only_machine_code_stays(module):
    data = module.read_bytes()
    kept = plan_module("x", data, [(9, 0)]), plan_module("x", data, [(9, 0)], ptx=False)
    assert [names(plan.kept) for plan in kept] == [["sm_90", "compute_80"], ["sm_90"]]
    assert [plan.left_without for plan in kept] == [0, 1]
    assert not kept[1].bereft


def test_emptied_modules_still_load(module, tmp_path):
    path = tmp_path / "_C.abi3.so"
    path.write_bytes(thinned(module, emptied="not wanted"))
    assert ctypes.CDLL(str(path)).answer(1) == ord("u")


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_the_check_finds_every_byte_that_is_not_upstreams(module, data):
    old = module.read_bytes()
    plan = plan_module("x", old, [(7, 5)])
    new = bytearray(thin_module(old, plan))
    layout = Layout.read(bytes(new))
    section = data.draw(st.sampled_from([s for s in layout.sections if s.stored]))
    at = section.offset + data.draw(st.integers(0, section.stored - 1))
    new[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(VerificationError):
        check_module(old, bytes(new), plan)


def test_a_check_against_another_plan_fails(module):
    old = module.read_bytes()
    new = thinned(module)
    with pytest.raises(VerificationError, match="not what thinning"):
        check_module(old, new, plan_module("x", old, [(8, 0)]))


# ---- a whole wheel ---------------------------------------------------------------------------


@pytest.fixture
def profile(tmp_path):
    made = demo_profile(tmp_path, recipe="thin", omissions=(), ptx=True)
    return replace(made, runtime=replace(made.runtime, version=THIN))


def upstream(folder: Path, module: Path, **members: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return write_wheel(
        folder,
        {
            "demo_pkg/__init__.py": b"__version__ = '1.2'\n",
            "demo_pkg/_C.abi3.so": module.read_bytes(),
            **members,
        },
        version=UPSTREAM,
        tag="cp38-abi3-linux_x86_64",
        filename=f"demo_pkg-{UPSTREAM}-cp38-abi3-manylinux_2_31_x86_64.whl",
    )


def test_the_wheel_says_what_was_done_and_is_whole(profile, module, tmp_path):
    wheel = upstream(tmp_path / "up", module)
    made = thin_wheel(wheel, profile, Wanted.of(profile), tmp_path / "out")
    assert made.wheel.name == f"demo_pkg-{THIN}-cp312-cp312-linux_x86_64.whl"
    assert made.wheel.stat().st_size * 5 < wheel.stat().st_size
    report = audit_wheel(made.wheel, profile)
    checks = {check.name: check for check in report.checks}
    assert {n: c.status for n, c in checks.items() if c.status == "fail"} == {}
    assert checks["record"].status == checks["tags"].status == checks["metadata"].status == "pass"
    with zipfile.ZipFile(made.wheel) as archive, zipfile.ZipFile(wheel) as old:
        assert archive.testzip() is None
        assert archive.namelist()[-1] == f"demo_pkg-{THIN}.dist-info/RECORD"
        assert archive.read("demo_pkg/__init__.py") == old.read("demo_pkg/__init__.py")
    assert made.facts["upstream"]["sha256"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    (facts,) = made.facts["modules"]
    assert facts["kept"] == {"sm_75": {"count": 3, "bytes": 36_000 + 3 * 64}}
    assert set(facts["removed"]) == {"compute_80", "sm_80", "sm_90", "sm_120"}
    assert facts["after"]["size"] < facts["before"]["size"]
    json.dumps(made.facts)


def test_the_client_stages_it(profile, module, tmp_path):
    made = thin_wheel(upstream(tmp_path / "up", module), profile, Wanted.of(profile), tmp_path)
    with WheelArchive(made.wheel, parse_wheel_name(made.wheel.name)) as archive:
        assert archive is not None


def test_the_same_bytes_each_time(profile, module, tmp_path):
    wheel = upstream(tmp_path / "up", module)
    one = thin_wheel(wheel, profile, Wanted.of(profile), tmp_path / "a").wheel.read_bytes()
    assert thin_wheel(wheel, profile, Wanted.of(profile), tmp_path / "b").wheel.read_bytes() == one


def with_omission(profile, **paths):
    omission = Omission("Flash", "needs 8.0", **paths)
    return replace(profile, build=replace(profile.build, omissions=(omission,)))


def test_a_module_that_upstream_has_code_in_is_not_emptied_in_silence(profile, module, tmp_path):
    only_ptx = with_code(
        tmp_path, [pack_entry(PTX, 70, b"p" * 50_000), pack_entry(CUBIN, 80, cubin(80, "c", 64))]
    )
    wheel = upstream(tmp_path / "up", module, **{"demo_pkg/_flash.so": only_ptx})
    strict = replace(profile, build=replace(profile.build, ptx=False))
    with pytest.raises(ContractError) as caught:
        thin_wheel(wheel, strict, Wanted.of(strict), tmp_path / "out")
    assert "demo_pkg/_flash.so: would be left without code for 7.5" in str(caught.value)
    assert "only compute_70" in str(caught.value)
    assert not (tmp_path / "out").exists()
    named = with_omission(strict, empty=("demo_pkg/_flash.so",))
    made = thin_wheel(wheel, named, Wanted.of(named), tmp_path / "out")
    emptied = next(item for item in made.facts["modules"] if item["path"].endswith("_flash.so"))
    assert (emptied["kept"], emptied["emptied"]) == ({}, "needs 8.0")


def test_a_module_that_never_had_code_for_it_is_emptied_and_said(profile, module, tmp_path):
    other = with_code(tmp_path, [pack_entry(CUBIN, 90, cubin(90, "c", 60_000))])
    wheel = upstream(tmp_path / "up", module, **{"demo_pkg/_fa3.so": other})
    made = thin_wheel(wheel, profile, Wanted.of(profile), tmp_path / "out")
    facts = next(item for item in made.facts["modules"] if item["path"].endswith("_fa3.so"))
    assert facts["units_without_code_for_it"] == 1
    check = next(c for c in audit_wheel(made.wheel, profile).checks if c.name == "sass")
    assert check.status == "note"
    assert any("_fa3.so" in place for place in check.where)


def test_a_dropped_module_is_gone_and_on_record(profile, module, tmp_path):
    other = with_code(tmp_path, [pack_entry(CUBIN, 90, cubin(90, "c", 60_000))])
    wheel = upstream(tmp_path / "up", module, **{"demo_pkg/_fa3.so": other})
    named = with_omission(profile, drop=("demo_pkg/_fa3.so",))
    made = thin_wheel(wheel, named, Wanted.of(named), tmp_path / "out")
    with zipfile.ZipFile(made.wheel) as archive:
        assert "demo_pkg/_fa3.so" not in archive.namelist()
    assert made.facts["dropped"] == [
        {
            "path": "demo_pkg/_fa3.so",
            "reason": "needs 8.0",
            "removed": {"sm_90": {"count": 1, "bytes": 60_064}},
        }
    ]
    assert next(c for c in audit_wheel(made.wheel, named).checks if c.name == "record").status == (
        "pass"
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "1.3+thin.sm75"}, "version 1.2"),
        ({"version": "1.2"}, "local part"),
    ],
)
def test_another_version_is_refused(profile, module, tmp_path, change, words):
    other = replace(profile, runtime=replace(profile.runtime, **change))
    with pytest.raises(ContractError) as caught:
        thin_wheel(upstream(tmp_path / "up", module), other, Wanted.of(other), tmp_path / "out")
    assert words in str(caught.value)


def test_an_architecture_that_upstream_has_nothing_for_is_refused(profile, module, tmp_path):
    other = replace(profile, build=replace(profile.build, compute_capabilities=("6.1",)))
    with pytest.raises(ContractError, match=r"has no code for 6\.1"):
        thin_wheel(upstream(tmp_path / "up", module), other, Wanted.of(other), tmp_path / "out")


def test_an_omission_of_what_is_not_there_is_refused(profile, module, tmp_path):
    named = with_omission(profile, drop=("demo_pkg/_nothing.so",))
    with pytest.raises(ContractError) as caught:
        thin_wheel(upstream(tmp_path / "up", module), named, Wanted.of(named), tmp_path / "out")
    assert "demo_pkg/_nothing.so: no such member" in str(caught.value)


def test_a_wheel_that_was_changed_behind_its_record_is_refused(profile, module, tmp_path):
    (tmp_path / "up").mkdir()
    wheel = write_wheel(
        tmp_path / "up",
        {"demo_pkg/__init__.py": b"", "demo_pkg/_C.abi3.so": module.read_bytes()},
        after={"demo_pkg/__init__.py": b"changed"},
        version=UPSTREAM,
        tag="cp38-abi3-linux_x86_64",
    )
    with pytest.raises(VerificationError, match="not what RECORD says"):
        thin_wheel(wheel, profile, Wanted.of(profile), tmp_path / "out")
    assert not list((tmp_path / "out").glob("*"))


def test_paths_of_an_omission_belong_to_the_profiles_digest(profile):
    named = with_omission(profile, drop=("demo_pkg/_fa3.so",))
    assert named.digest != with_omission(profile).digest
    assert profile_from_canonical(named.canonical()) == named
    assert b"drop" not in with_omission(profile).canonical()


def test_the_command_and_an_architecture_that_is_not_the_profiles(module, tmp_path, monkeypatch):
    checkout = tmp_path / "checkout"
    (checkout / "dockerfiles").mkdir(parents=True)
    folder = checkout / "profiles" / "demo"
    source = Path(__file__).parents[2] / "profiles" / "t4x2-cu128-thin"
    shutil.copytree(source, folder)
    text = (folder / "profile.toml").read_text()
    text = text.replace('"0.18.1+thin.sm75"', f'"{THIN}"').replace('"vllm"\n', '"demo-pkg"\n')
    head, _, tail = text.partition("# _vllm_fa2_C has no code")
    (folder / "profile.toml").write_text(head + tail[tail.index("# The highest symbol") :])
    monkeypatch.setenv("KVREG_CHECKOUT", str(checkout))
    wheel = str(upstream(tmp_path / "up", module))
    run = CliRunner().invoke
    ended = run(main, ["thin", wheel, "-p", "demo", "--arch", "7.5", "--json"])
    assert ended.exit_code == 0, ended.output
    answer = json.loads(ended.stdout)
    assert Path(answer["wheel"]).exists()
    assert answer["modules"][0]["kept"]["sm_75"]["count"] == 3
    ended = run(main, ["thin", wheel, "-p", "demo", "--arch", "8.0"])
    assert ended.exit_code == 1
    assert "is for other GPUs" in ended.output


def with_code(folder: Path, entries: list[bytes]) -> bytes:
    """A small module with one region of device code."""
    code = folder / "other.fatbin"
    code.write_bytes(pack_region(entries))
    source = folder / "other.S"
    source.write_text(
        f'.section .nv_fatbin,"a"\n.align 8\n.incbin "{code}"\n'
        '.section .note.GNU-stack,"",%progbits\n'
    )
    path = folder / "other.so"
    subprocess.run(["gcc", "-shared", "-nostdlib", "-o", path, source], check=True)
    return path.read_bytes()


def test_files_that_nvcc_made_go_through(tmp_path):
    path = tmp_path / "real.so"
    source = tmp_path / "real.S"
    source.write_text(
        f'.section .nv_fatbin,"a"\n.align 8\n.incbin "{FATBINS / "cuda12.4-plain.fatbin"}"\n'
        '.section .note.GNU-stack,"",%progbits\n'
    )
    subprocess.run(["gcc", "-shared", "-nostdlib", "-o", path, source], check=True)
    data = path.read_bytes()
    plan = plan_module("real.so", data, [(9, 0)])
    new = thin_module(data, plan)
    check_module(data, new, plan)
    assert names(plan.kept) == ["sm_90", "sm_90a"]
    with Wheel(write_wheel(tmp_path, {"real.so": new})) as wheel:
        assert wheel.members
