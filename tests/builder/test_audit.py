"""The audit as a gate: a good wheel passes, and each kind of fault is told with place and remedy.

Modules are compiled by gcc here, device code comes from nvcc, and the stand-in for torch is a
wheel with real libraries.
"""

import json
import os
import zipfile
from dataclasses import replace

import pytest
from click.testing import CliRunner

from builder.audit import audit_wheel
from builder.cache import InputCache
from builder.commands.audit import audit
from kvreg.errors import NotFoundError, VerificationError
from tests.builder.audit_material import (
    FATBINS,
    INIT,
    TORCH_SYMBOL,
    VERSION,
    calls,
    compile_library,
    demo_profile,
    device_code,
    make_torch,
    under,
    versioned_stub,
    write_wheel,
)
from tests.kvreg.profiles import write_profile

SM75 = device_code("cuda12.4-sm75.fatbin")
LINK_TORCH = ("-Wl,--no-as-needed", "-ltorch")


@pytest.fixture(scope="session")
def torch(tmp_path_factory):
    return make_torch(tmp_path_factory.mktemp("torch"))


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return InputCache(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def profile(tmp_path):
    return demo_profile(tmp_path)


class Bench:
    """Compiles modules, packs wheels, audits them."""

    def __init__(self, folder, torch, cache, profile):
        self.folder, self.torch, self.cache, self.profile = folder, torch, cache, profile
        folder.mkdir(exist_ok=True)

    def module(self, source=SM75 + INIT, *options, name="_C.abi3.so", torch=True):
        link = (f"-L{self.torch.libraries}", *LINK_TORCH) if torch else ()
        return compile_library(self.folder, name, source, *options, *link).read_bytes()

    def wheel(self, module=None, members=None, **options):
        whole = {"demo_pkg/__init__.py": b"", "demo_pkg/_C.abi3.so": module or self.module()}
        return write_wheel(self.folder, whole | (members or {}), **options)

    def audit(self, wheel, profile=None, torch=True, **options):
        return audit_wheel(
            wheel,
            profile or self.profile,
            self.torch.wheel if torch else None,
            cache=self.cache,
            **options,
        )

    def check(self, name, wheel, **options):
        report = self.audit(wheel, **options)
        found = next(check for check in report.checks if check.name == name)
        others = [check.name for check in report.failures if check.name != name]
        return found, others


@pytest.fixture
def bench(tmp_path, torch, cache, profile):
    return Bench(tmp_path / "bench", torch, cache, profile)


def refuses(check, *words):
    """The check failed, names these words, and says what to do."""
    assert check.status == "fail"
    assert check.remedy
    text = " ".join([check.found, *check.where])
    for word in words:
        assert word in text, f"{word!r} not in {text!r}"


# ---- a good wheel ----------------------------------------------------------------------------


def test_a_good_wheel_passes_every_check(bench):
    source = SM75 + INIT + calls(TORCH_SYMBOL, "PyList_New", "_Py_NoneStruct")
    report = bench.audit(bench.wheel(bench.module(source)))
    assert [check.name for check in report.checks if check.status != "pass"] == []
    assert report.ok and report.complete
    module = report.modules[0]
    assert (module.path, module.sass, module.ptx) == ("demo_pkg/_C.abi3.so", {"sm_75": 1}, {})
    assert "libtorch.so" in module.needed
    text = report.text()
    assert text.endswith("accepted: 17 passed, 0 failed")
    assert max(map(len, text.splitlines())) <= 100


def test_the_report_as_data_is_the_same_every_time(bench):
    wheel = bench.wheel()
    first, again = bench.audit(wheel, jobs=1).to_dict(), bench.audit(wheel, jobs=4).to_dict()
    assert first == again
    assert json.loads(json.dumps(first)) == first
    assert first["torch_wheel"]["filename"] == bench.torch.wheel.name


# ---- identity --------------------------------------------------------------------------------


def test_another_version_than_the_profile(bench):
    wheel = bench.wheel(version="1.2+cu124")
    check, others = bench.check("metadata", wheel)
    refuses(check, "1.2+cu124")
    assert others == []
    assert VERSION in check.required


def test_another_name_than_the_profile(bench):
    check, _ = bench.check("metadata", bench.wheel(name="other"))
    refuses(check, "other")


def test_a_file_name_that_disagrees_with_metadata(bench):
    check, _ = bench.check("tags", bench.wheel(filename="demo_pkg-9-cp312-cp312-linux_x86_64.whl"))
    refuses(check, "9", VERSION)


@pytest.mark.parametrize(
    "tag",
    ["cp311-cp311-linux_x86_64", "cp313-abi3-linux_x86_64", "cp312-cp312-linux_aarch64",
     "cp312-cp312-manylinux_2_39_x86_64", "cp312-cp312-win_amd64"],
)  # fmt: skip
def test_a_tag_that_is_not_for_the_host(bench, tag):
    check, _ = bench.check("tags", bench.wheel(tag=tag))
    refuses(check, tag)


@pytest.mark.parametrize("tag", ["cp38-abi3-linux_x86_64", "cp312-abi3-manylinux_2_35_x86_64"])
def test_the_limited_interface_of_an_older_python_is_for_the_host(bench, tag):
    report = bench.audit(bench.wheel(tag=tag))
    assert [check.name for check in report.failures] == []


def renamed(bench):
    return bench.wheel(filename=f"demo_pkg-{VERSION}-cp312-cp312-manylinux_2_31_x86_64.whl")


def test_a_wheel_whose_tag_was_set_by_renaming(bench):
    check, _ = bench.check("tags", renamed(bench))
    refuses(check, "manylinux_2_31_x86_64", "cp312-cp312-linux_x86_64")


def test_an_adopted_wheel_may_have_been_renamed(bench, tmp_path):
    adopted = demo_profile(tmp_path, recipe="adopt")
    check, others = bench.check("tags", renamed(bench), profile=adopted)
    assert (check.status, others) == ("note", [])


def test_a_module_that_the_profile_imports_is_missing(bench):
    runtime = replace(bench.profile.runtime, modules=("demo_pkg._C", "demo_pkg._fa2"))
    profile = replace(bench.profile, runtime=runtime)
    check, others = bench.check("modules", bench.wheel(), profile=profile)
    refuses(check, "demo_pkg._fa2")
    assert others == []


# ---- RECORD ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ({"demo_pkg/__init__.py": b"changed"}, ["demo_pkg/__init__.py", "found"]),
        ({"demo_pkg/new.py": b""}, ["demo_pkg/new.py: not listed"]),
        ({"../outside.py": b""}, ["../outside.py: its path leaves the wheel"]),
        ({"/absolute.py": b""}, ["/absolute.py: its path leaves the wheel"]),
    ],
)
def test_a_wheel_that_was_changed_behind_its_record(bench, after, words):
    check, others = bench.check("record", bench.wheel(after=after))
    refuses(check, *words)
    assert others == []


def test_a_listed_member_that_is_not_there(bench):
    gone = "demo_pkg/gone.py"
    info = f"demo_pkg-{VERSION}.dist-info"
    wheel = bench.wheel()
    with zipfile.ZipFile(wheel) as archive:
        record = archive.read(f"{info}/RECORD") + f"{gone},sha256=AAAA,1\n".encode()
    check, _ = bench.check("record", bench.wheel(after={f"{info}/RECORD": record}))
    refuses(check, f"{gone}: listed, but not there")


def test_members_that_are_there_twice(bench):
    wheel = bench.wheel()
    with (
        zipfile.ZipFile(wheel, "a") as archive,
        pytest.warns(UserWarning, match="Duplicate name"),
    ):
        archive.writestr("demo_pkg/__init__.py", b"other")
    check, _ = bench.check("record", wheel)
    refuses(check, "demo_pkg/__init__.py: it is there more than once")


def test_a_wheel_without_a_record(bench):
    check, _ = bench.check("record", bench.wheel(after={"other-1.dist-info/METADATA": b""}))
    refuses(check, "no readable RECORD")


def test_a_file_that_is_no_wheel(bench, tmp_path):
    path = tmp_path / "x-1-py3-none-any.whl"
    with pytest.raises(NotFoundError):
        bench.audit(path)
    whole = bench.wheel().read_bytes()
    for data in (b"<html>not found</html>", whole[: len(whole) // 2]):
        path.write_bytes(data)
        with pytest.raises(VerificationError, match="not a whole wheel"):
            bench.audit(path)


def test_a_member_that_does_not_unpack(bench, tmp_path):
    whole = bytearray(bench.wheel(members={"demo_pkg/data.bin": os.urandom(4096)}).read_bytes())
    position = whole.index(b"demo_pkg/data.bin") + 200
    whole[position] ^= 0xFF
    path = tmp_path / f"demo_pkg-{VERSION}-cp312-cp312-linux_x86_64.whl"
    path.write_bytes(whole)
    with pytest.raises(VerificationError, match="not a whole wheel"):
        bench.audit(path)


# ---- device code -----------------------------------------------------------------------------


def with_code(bench, name):
    return bench.wheel(bench.module(device_code(name) + INIT))


def test_another_architecture(bench):
    check, _ = bench.check("sass", with_code(bench, "cuda13.0-families.fatbin"))
    refuses(check, "demo_pkg/_C.abi3.so: no SASS for sm_75", "sm_100f")
    assert "TORCH_CUDA_ARCH_LIST=7.5" in check.remedy


def test_an_architecture_too_many(bench):
    check, others = bench.check("sass", with_code(bench, "cuda12.4-plain.fatbin"))
    refuses(check, "SASS for sm_90, sm_90a as well")
    assert others == ["ptx"]


@pytest.mark.parametrize("name", ["cuda13.0-lz4.fatbin", "cuda13.0-zstd.fatbin"])
def test_ptx_left_in(bench, name):
    check, others = bench.check("ptx", with_code(bench, name))
    refuses(check, "demo_pkg/_C.abi3.so: 1 compute_75")
    assert others == []


def test_ptx_that_the_profile_asks_for(bench, tmp_path):
    profile = demo_profile(tmp_path, ptx=True)
    report = bench.audit(with_code(bench, "cuda13.0-zstd.fatbin"), profile=profile)
    assert report.ok
    check, _ = bench.check("ptx", with_code(bench, "cuda12.4-compressed.fatbin"), profile=profile)
    refuses(check, "compute_90")


def test_code_that_is_compiled_at_link_time(bench):
    check, _ = bench.check("sass", with_code(bench, "cuda13.0-lto.fatbin"))
    refuses(check, "device code of other kinds: 1 lto_90")


def test_a_wheel_without_device_code(bench):
    check, _ = bench.check("sass", bench.wheel(bench.module(INIT)))
    refuses(check, "no module holds any SASS")


def test_device_code_outside_of_shared_objects_counts_too(bench):
    members = {
        "demo_pkg/kernels.fatbin": (FATBINS / "cuda13.0-families.fatbin").read_bytes(),
        "demo_pkg/kernel.cubin": (FATBINS / "cuda13.0-sm75.cubin").read_bytes(),
        "demo_pkg/kernel.ptx": b".version 9.0\n.target sm_75\n",
    }
    report = bench.audit(bench.wheel(members=members))
    failed = {check.name: check for check in report.failures}
    refuses(failed["sass"], "demo_pkg/kernels.fatbin: no SASS for sm_75")
    refuses(failed["ptx"], "demo_pkg/kernel.ptx")
    assert not any("kernel.cubin" in place for place in failed["sass"].where)


def test_damaged_device_code(bench, tmp_path):
    damaged = tmp_path / "damaged.fatbin"
    data = bytearray((FATBINS / "cuda12.4-sm75.fatbin").read_bytes())
    data[16 + 8] ^= 0xFF  # the payload's size
    damaged.write_bytes(data)
    check, _ = bench.check("sass", bench.wheel(bench.module(device_code(damaged) + INIT)))
    refuses(check, "malformed at byte")


def test_an_adopted_wheel_contains_the_architecture_among_others(bench, tmp_path):
    adopted = demo_profile(tmp_path, recipe="adopt")
    report = bench.audit(with_code(bench, "cuda12.4-plain.fatbin"), profile=adopted)
    checks = {check.name: check for check in report.checks}
    assert report.ok
    assert (checks["sass"].status, checks["ptx"].status) == ("note", "note")
    assert "contain" in checks["sass"].required
    check, _ = bench.check("sass", with_code(bench, "cuda13.0-families.fatbin"), profile=adopted)
    refuses(check, "no SASS for sm_75")


# ---- the host's libraries --------------------------------------------------------------------


def needing(bench, soname, version, symbol):
    stub = versioned_stub(bench.folder, soname, version, [symbol])
    return bench.module(SM75 + INIT + calls(symbol), str(stub))


@pytest.mark.parametrize(
    ("name", "soname", "version", "symbol"),
    [
        ("glibc", "libc.so.6", "GLIBC_2.38", "__isoc23_strtol"),
        ("glibc", "libc.so.6", "GLIBC_PRIVATE", "__libc_secret"),
        ("glibcxx", "libstdc++.so.6", "GLIBCXX_3.4.32", "_ZSt21ios_base_library_initv"),
        ("cxxabi", "libstdc++.so.6", "CXXABI_1.3.15", "__cxa_call_terminate"),
    ],
)
def test_a_symbol_version_that_the_host_lacks(bench, name, soname, version, symbol):
    check, others = bench.check(name, bench.wheel(needing(bench, soname, version, symbol)))
    refuses(check, "demo_pkg/_C.abi3.so", version, soname, symbol)
    assert others == []


def test_a_symbol_version_that_the_host_has(bench):
    report = bench.audit(bench.wheel(needing(bench, "libc.so.6", "GLIBC_2.34", "dlopen")))
    check = next(check for check in report.checks if check.name == "glibc")
    assert (check.status, check.found) == ("pass", "GLIBC_2.34")
    assert report.modules[0].versions == {"GLIBC": "2.34"}


def test_a_manylinux_tag_that_promises_too_much(bench):
    """A wheel tagged manylinux_2_31 that needs GLIBC_2.34: it would be installed and not load."""
    module = needing(bench, "libc.so.6", "GLIBC_2.34", "dlopen")
    check, others = bench.check(
        "platform", bench.wheel(module, tag="cp312-cp312-manylinux_2_31_x86_64")
    )
    refuses(check, "manylinux_2_31_x86_64", "manylinux_2_34_x86_64")
    assert others == []


@pytest.mark.parametrize("soname", ["libjpeg.so.62", "libcudart.so.13", "libcublas.so.12"])
def test_a_library_that_nobody_provides(bench, soname):
    """libcublas.so.12 is known, but the stand-in for torch does not require its package."""
    stub = compile_library(bench.folder, soname, "void one(void) {}\n", soname=soname)
    module = bench.module(SM75 + INIT, "-Wl,--no-as-needed", str(stub))
    check, others = bench.check("libraries", bench.wheel(module))
    refuses(check, soname)
    assert others == []


@pytest.mark.parametrize("soname", ["libcudart.so.12", "libcuda.so.1"])
def test_a_library_of_the_driver_or_of_a_requirement_of_torch(bench, soname):
    symbol = "cuMemMap" if soname == "libcuda.so.1" else "cudaMalloc"
    stub = compile_library(bench.folder, soname, f"void {symbol}(void) {{}}\n", soname=soname)
    module = bench.module(SM75 + INIT + calls(symbol), "-Wl,--no-as-needed", str(stub))
    assert bench.audit(bench.wheel(module)).ok


def test_a_library_of_the_wheel_itself(bench):
    stub = compile_library(bench.folder, "libhelp.so", "void help(void) {}\n", soname="libhelp.so")
    module = bench.module(SM75 + INIT + calls("help"), str(stub), "-Wl,-rpath,$ORIGIN")
    members = {"demo_pkg/libhelp.so": stub.read_bytes()}
    assert bench.audit(bench.wheel(module, members=members)).ok


@pytest.mark.parametrize("path", ["/opt/cuda/lib64", "lib", "", "$ORIGIN:/usr/local/cuda/lib64"])
@pytest.mark.parametrize("kind", ["--enable-new-dtags", "--disable-new-dtags"])
def test_a_search_path_that_leads_elsewhere(bench, path, kind):
    if not path:  # an empty part, which ld drops when it stands alone
        path = "$ORIGIN::$ORIGIN/x"
    module = bench.module(SM75 + INIT, f"-Wl,-rpath,{path}", f"-Wl,{kind}")
    check, others = bench.check("search path", bench.wheel(module))
    refuses(check, "RUNPATH" if kind == "--enable-new-dtags" else "RPATH")
    assert others == []


# ---- symbols ---------------------------------------------------------------------------------


def test_a_torch_symbol_that_the_torch_wheel_lacks(bench):
    missing = "_ZN3c106detail8newCheckEPKc"
    module = bench.module(SM75 + INIT + calls(TORCH_SYMBOL, missing))
    check, others = bench.check("symbols", bench.wheel(module))
    refuses(check, missing, "demo_pkg/_C.abi3.so")
    assert TORCH_SYMBOL not in " ".join(check.where)
    assert bench.torch.wheel.name in check.remedy
    assert others == []


def test_a_symbol_of_a_torch_library_that_the_module_does_not_need(bench):
    module = bench.module(SM75 + INIT + calls("only_other"))
    check, _ = bench.check("symbols", bench.wheel(module))
    refuses(check, "only_other (in torch's libtorch_other.so, which is not NEEDED)")


def test_a_driver_symbol_without_the_driver_library(bench):
    module = bench.module(SM75 + INIT + calls("cuMemMap"))
    check, _ = bench.check("symbols", bench.wheel(module))
    refuses(check, "cuMemMap (of libcuda.so.1, which is not NEEDED)")


def test_a_weak_symbol_may_be_missing(bench):
    weak = "extern void may_be_absent(void) __attribute__((weak));\n"
    module = bench.module(SM75 + INIT + weak + "void *reference = may_be_absent;\n")
    assert bench.audit(bench.wheel(module)).ok


def test_without_the_torch_wheel_its_symbols_are_not_judged(bench):
    wheel = bench.wheel(bench.module(SM75 + INIT + calls(TORCH_SYMBOL)))
    report = bench.audit(wheel, torch=False)
    check = next(check for check in report.checks if check.name == "symbols")
    assert (check.status, report.ok, report.complete) == ("skip", True, False)
    assert "--torch-wheel" in check.remedy


def test_a_library_wheel_makes_its_symbols_known(bench, tmp_path):
    """Given the CUDA runtime's wheel, a symbol that it lacks is found missing."""
    runtime = versioned_stub(bench.folder, "libcudart.so.12", "libcudart.so.12", ["cudaOld"])
    newer = versioned_stub(
        bench.folder / "newer", "libcudart.so.12", "libcudart.so.12", ["cudaOld", "cudaNew"]
    )
    wheel = bench.wheel(bench.module(SM75 + INIT + calls("cudaOld", "cudaNew"), str(newer)))
    library = write_wheel(
        tmp_path,
        {"nvidia/cuda_runtime/lib/libcudart.so.12": runtime.read_bytes()},
        name="nvidia-cuda-runtime-cu12",
        version="12.8.90",
    )
    assert bench.audit(wheel).ok
    check, others = bench.check("symbols", wheel, library_wheels=[library])
    refuses(check, "cudaNew of libcudart.so.12")
    assert others == [] and len(check.where) == 1


def test_the_symbol_table_is_kept_and_remade_when_damaged(bench, tmp_path):
    bench.cache = InputCache(tmp_path / "tables")
    wheel = bench.wheel(bench.module(SM75 + INIT + calls(TORCH_SYMBOL, "gone")))
    first = bench.audit(wheel).to_dict()
    (kept,) = (tmp_path / "tables" / "symbols").glob("*.json.zst")
    before = kept.read_bytes()
    assert bench.audit(wheel).to_dict() == first
    kept.write_bytes(before[:-20])
    assert bench.audit(wheel).to_dict() == first
    assert kept.read_bytes() == before


# ---- CPython's interface ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("symbol", "says"),
    [
        ("_PyObject_GetDictPtr", "is not in the stable interface"),
        ("PyType_GetModuleByDef", "is in it from 3.13 on only"),
    ],
)
def test_a_limited_module_that_uses_more(bench, symbol, says):
    module = bench.module(SM75 + INIT + calls(symbol))
    check, others = bench.check("python api", bench.wheel(module))
    refuses(check, f"demo_pkg/_C.abi3.so: {symbol} {says}")
    assert others == []
    assert "0x030c0000" in check.remedy


def test_a_tag_that_promises_an_older_python_than_the_symbols(bench):
    wheel = bench.wheel(
        bench.module(SM75 + INIT + calls("PyType_GetModule")), tag="cp38-abi3-linux_x86_64"
    )
    check, others = bench.check("python api", wheel)
    assert (check.status, others) == ("note", [])
    assert "PyType_GetModule is stable from 3.10 on" in check.where[0]


def test_a_module_for_one_python(bench):
    ours, other = "_D.cpython-312-x86_64-linux-gnu.so", "_D.cpython-311-x86_64-linux-gnu.so"
    module = bench.module(SM75 + INIT + calls("_PyObject_GetDictPtr"))
    check, others = bench.check("python api", bench.wheel(members={f"demo_pkg/{ours}": module}))
    assert (check.status, others) == ("note", [])
    check, _ = bench.check("python api", bench.wheel(members={f"demo_pkg/{other}": module}))
    refuses(check, "named for CPython 3.11")


# ---- machine, paths, secrets -----------------------------------------------------------------


def test_a_module_for_another_machine(bench):
    module = bytearray(bench.module())
    module[18:20] = (183).to_bytes(2, "little")  # e_machine: AArch64
    check, others = bench.check("machine", bench.wheel(bytes(module)))
    refuses(check, "demo_pkg/_C.abi3.so: for aarch64")
    assert others == []


def test_a_module_that_is_cut_off(bench):
    module = bench.module()
    check, _ = bench.check("machine", bench.wheel(module[: len(module) // 2]))
    refuses(check, "demo_pkg/_C.abi3.so", "damaged")


@pytest.mark.parametrize(
    "place", [under("work", "src/kernel.cu"), under("tmp", "tmpxft_0000a1_1.cudafe1.cpp")]
)
def test_a_build_path_in_a_module(bench, place):
    module = bench.module(SM75 + INIT + f'const char *where(void) {{ return "{place}"; }}\n')
    check, others = bench.check("build paths", bench.wheel(module))
    refuses(check, "demo_pkg/_C.abi3.so at byte", place)
    assert others == []
    assert "-ffile-prefix-map" in check.remedy


@pytest.mark.parametrize(
    "text",
    [
        "-I" + under("root", "include"),
        f"x = '{under('home', 'builder/x')}'",
        "file://" + under("inputs", "torch.whl"),
        under("work", "a"),
    ],
)
def test_a_build_path_in_a_text(bench, text):
    check, others = bench.check(
        "build paths", bench.wheel(members={"demo_pkg/_about.py": text.encode()})
    )
    refuses(check, "demo_pkg/_about.py at byte")
    assert others == []


@pytest.mark.parametrize(
    "text",
    [
        "demo/inputs/parse.py", "https://example.org/home/x", "${X}" + under("work", "y"),
        "/homework/x", under("home", "user/.cache/models"), "a" + under("root", "b"), "'/root/'",
        "/usr/local/cuda/bin",
    ],
)  # fmt: skip
def test_what_is_no_build_path(bench, text):
    assert bench.audit(bench.wheel(members={"demo_pkg/_about.py": text.encode()})).ok


KEY = "-----BEGIN " + "RSA PRIVATE KEY-----\n" + "A" * 64 + "\n"
SECRETS = [
    KEY, "ghp" + "_" + "a1B2" * 9, "github_pat" + "_" + "a" * 22 + "_" + "b" * 59,
    "hf" + "_" + "aB" * 17, "AK" + "IA" + "ABCD" * 4, "pypi" + "-AgE" + "x" * 60,
    "glpat" + "-" + "a1" * 10, "https://me:" + "x" * 20 + "@host/simple",
]  # fmt: skip


@pytest.mark.parametrize("secret", SECRETS, ids=range(len(SECRETS)))
def test_a_secret_in_a_text(bench, secret):
    members = {"demo_pkg/_config.py": f"token = '{secret}'\n".encode()}
    check, others = bench.check("secrets", bench.wheel(members=members))
    refuses(check, "demo_pkg/_config.py at byte")
    assert others == []
    assert secret not in json.dumps(check.to_dict()), "a report must not repeat a secret"


def test_a_secret_in_a_module(bench):
    module = bench.module(SM75 + INIT + f'const char *key(void) {{ return "{SECRETS[1]}"; }}\n')
    check, _ = bench.check("secrets", bench.wheel(module))
    refuses(check, "demo_pkg/_C.abi3.so at byte", "GitHub token")


@pytest.mark.parametrize(
    "path", [".netrc", "demo_pkg/.pypirc", "demo_pkg/.git/config", ".env", "keys/id_ed25519"]
)
def test_a_member_that_is_a_secret_by_its_name(bench, path):
    check, others = bench.check("secrets", bench.wheel(members={path: b"x"}))
    refuses(check, f"{path}: by its name")
    assert others == []


def test_key_markers_and_short_tokens_are_no_secrets(bench):
    text = f"if line == '-----BEGIN {'PRIVATE KEY'}-----': pass  # hf_hub, ghp_x".encode()
    assert bench.audit(bench.wheel(members={"demo_pkg/pem.py": text})).ok


# ---- the command -----------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(audit, [str(argument) for argument in arguments])


@pytest.fixture
def command(bench, tmp_path):
    folder = write_profile(tmp_path, modules='modules = ["demo_pkg", "demo_pkg._C"]')
    options = ["--profile", folder, "--cache", bench.cache.root]
    return [*options, "--torch-wheel", bench.torch.wheel]


def test_the_command_accepts(bench, command):
    result = run(bench.wheel(), *command)
    assert result.exit_code == 0, result.output
    assert "accepted: 17 passed" in result.stdout


def test_the_command_refuses_with_exit_code_1(bench, command):
    result = run(bench.wheel(version="9"), *command)
    assert result.exit_code == 1
    assert "FAIL  metadata" in result.stdout and "remedy:" in result.stdout
    assert "REFUSED" in result.stdout


def test_the_command_as_json(bench, command):
    result = run(bench.wheel(version="9"), *command, "--json")
    data = json.loads(result.stdout)
    assert result.exit_code == 1
    assert data["ok"] is False
    failed = [check for check in data["checks"] if check["status"] == "fail"]
    assert [check["name"] for check in failed] == ["metadata"]


def test_the_command_says_when_a_check_was_skipped(bench, command):
    wheel = bench.wheel(bench.module(SM75 + INIT + calls(TORCH_SYMBOL)))
    result = run(wheel, *command[:-2])
    assert result.exit_code == 0
    assert "skipped" in result.stderr


def test_the_command_on_a_file_that_is_not_there(command):
    result = run("absent-1-py3-none-any.whl", *command, "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["error"]["kind"] == "not-found"


def test_torch_for_cuda_13_names_the_toolkits_extras(tmp_path, bench):
    facts = {
        "torch_cuda": replace(bench.profile.host.torch_cuda, require="==13.0", validated="13.0")
    }
    profile = replace(bench.profile, host=replace(bench.profile.host, **facts))
    stub = versioned_stub(bench.folder, "libcudart.so.13", "libcudart.so.13", ["cudaMalloc"])
    wheel = bench.wheel(bench.module(SM75 + INIT + calls("cudaMalloc"), str(stub)))
    libraries = {f"torch/lib/{p.name}": p.read_bytes() for p in bench.torch.libraries.glob("*.so")}
    for requirement, status in (
        ("cuda-toolkit[cublas,cudart]==13.0.2; platform_system == 'Linux'", "pass"),
        ("cuda-toolkit[cublas]==13.0.2; platform_system == 'Linux'", "fail"),
    ):
        torch = write_wheel(
            tmp_path, libraries, name="torch", version="2.11.0", requires=(requirement,)
        )
        report = audit_wheel(wheel, profile, torch, cache=bench.cache)
        assert next(c for c in report.checks if c.name == "libraries").status == status
