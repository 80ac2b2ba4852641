"""Doctor with a staged runtime: its code, symbols, libraries and packages against a host."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvreg.cli import main
from kvreg.doctor.devicecode import device_code_check, runs_on
from kvreg.doctor.diagnosis import diagnose
from kvreg.doctor.native import native_checks, shared_objects
from kvreg.doctor.probe import probe_checks, report_checks
from kvreg.doctor.shadowing import shadowing_checks
from kvreg.facts import load
from kvreg.model.oci import ANNOTATION_COMPUTE_CAPABILITIES
from kvreg.runtime import read_runtime
from tests.kvreg.native_material import MODULE, compile_library, exports, fake_torch, needs

DATA = Path(__file__).resolve().parents[1] / "data"
T4X2 = load(DATA / "facts" / "dual-t4.json")
USED = "_ZN5torch4usedEv"
GONE = "_ZN5torch4goneEv"


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A stand-in for torch that exports some symbols, on this process's path."""

    def make(*symbols):
        monkeypatch.syspath_prepend(tmp_path / "host")
        for name in ("LD_LIBRARY_PATH", "LD_PRELOAD"):
            monkeypatch.delenv(name, raising=False)
        return fake_torch(tmp_path / "host", *symbols)

    return make


@pytest.fixture
def staged(publish, tmp_path):
    """A staged runtime with one native module that links these libraries of a folder."""

    def make(source, folder=None, *libraries, annotations=None, **options):
        links = [f"-L{folder}", *(f"-l:{name}" for name in libraries)] if folder else []
        path = compile_library(tmp_path / "build", "_C.so", MODULE + source, *links)
        found = publish(extra={"demo_pkg/_C.so": path.read_bytes()}, **options)
        runtime = found.pull().runtime
        return replace(runtime, annotations=annotations or {}), found

    return make


def by_name(checks):
    return {check.name: check for check in checks}


def test_a_module_whose_needs_are_met_is_ok(host, staged):
    library = host(USED) / "lib"
    runtime, found = staged(needs(USED), library, "libc10.so")
    assert [path.name for path in shared_objects(runtime)] == ["_C.so"]
    checks = by_name(native_checks(found.profile, runtime))
    assert {check.status for check in checks.values()} == {"ok"}
    assert checks["native.symbols"].found == "1 symbols, all provided"


def test_a_torch_that_lacks_one_symbol_is_found_before_import(host, staged):
    library = host(USED, GONE) / "lib"
    runtime, found = staged(needs(USED, GONE), library, "libc10.so")
    compile_library(library, "libc10.so", exports(USED))
    check = by_name(native_checks(found.profile, runtime))["native.symbols"]
    assert check.status == "violated"
    assert GONE in check.found
    assert USED not in check.found
    assert "torch" in check.remedy


def test_a_missing_library_is_named_and_not_blamed_on_torch(host, staged, tmp_path):
    library = host(USED) / "lib"
    cuda = compile_library(tmp_path / "driver", "libcuda.so.1", exports("cuInit"))
    (library / cuda.name).write_bytes(cuda.read_bytes())
    runtime, found = staged(needs(USED, "cuInit"), library, "libc10.so", "libcuda.so.1")
    (library / cuda.name).unlink()
    checks = by_name(native_checks(found.profile, runtime))
    assert checks["native.libraries"].status == "violated"
    assert "libcuda.so.1 (for _C.so)" in checks["native.libraries"].found
    assert "attach a GPU" in checks["native.libraries"].remedy
    assert checks["native.symbols"].status == "ok"
    assert "missing libraries" in checks["native.symbols"].found


def test_a_symbol_version_that_a_library_lacks(host, staged, tmp_path):
    library = host(USED) / "lib"
    script = tmp_path / "map"
    script.write_text("DEMO_1.0 { global: old; }; DEMO_2.0 { global: new; };\n")
    options = [f"-Wl,--version-script={script}"]
    compile_library(library, "libdemo.so.1", exports("old", "new"), *options)
    runtime, found = staged(needs("new"), library, "libdemo.so.1")
    # As the loader finds it for torch: by its own search path.
    compile_library(
        library, "libc10.so", exports(USED) + needs("old"), f"-L{library}", "-l:libdemo.so.1",
        "-Wl,-rpath,$ORIGIN",
    )  # fmt: skip
    assert by_name(native_checks(found.profile, runtime))["native.versions"].status == "ok"
    script.write_text("DEMO_1.0 { global: old; new; };\n")
    compile_library(library, "libdemo.so.1", exports("old", "new"), *options)
    check = by_name(native_checks(found.profile, runtime))["native.versions"]
    assert check.status == "violated"
    assert "DEMO_2.0" in check.found


def test_a_staged_runtime_is_checked_by_the_command(host, staged, monkeypatch, tmp_path):
    library = host(USED, GONE) / "lib"
    _, found = staged(needs(GONE), library, "libc10.so")
    compile_library(library, "libc10.so", exports(USED))
    monkeypatch.setenv("KVREG_HOME", str(found.home.root))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo_pkg.py").write_text("")
    result = CliRunner().invoke(main, ["doctor", "demo", "--json"], catch_exceptions=False)
    assert result.exit_code == 1
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert checks["native.symbols"]["status"] == "violated"
    assert checks["runtime.shadowed"]["found"] == str(tmp_path / "demo_pkg.py")
    # From a file of another host only what does not lie on this one's disk is judged.
    words = ["doctor", "demo", "--json", "--facts", str(DATA / "facts" / "dual-t4.json")]
    elsewhere = CliRunner().invoke(main, words, catch_exceptions=False)
    names = {check["name"] for check in json.loads(elsewhere.stdout)["checks"]}
    assert {"runtime.device-code", "runtime.shadows"} <= names
    assert not any(name.startswith("native.") for name in names)


def test_a_damaged_runtime_is_a_violation(staged):
    runtime, found = staged("")
    (runtime.folder / "runtime.json").write_text("{")
    diagnosis = diagnose(found.profile, T4X2, found.home)
    assert by_name(diagnosis.checks)["runtime"].status == "violated"


def test_protected_packages_are_never_hidden_and_others_are_said(staged):
    runtime, found = staged("")
    facts = replace(T4X2, packages={"demo-pkg": "1.1", "torch": "2.10.0"})
    (check,) = shadowing_checks(found.profile, runtime, facts, None)
    assert check.status == "ok"
    assert check.found == "demo-pkg 1.1 by 1.2+cu128.sm75"
    torch = replace(runtime.wheels[0], name="Torch", version="2.9")
    (check,) = shadowing_checks(found.profile, replace(runtime, wheels=(torch,)), facts, None)
    assert check.status == "violated"
    assert "Torch 2.10.0 by 2.9" in check.found


# -- device code ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "devices", "status"),
    [
        ("7.5", ("7.5", "7.5"), "ok"),
        ("7.0 7.5 8.0+PTX", ("9.0",), "ok"),
        ("7.5", ("9.0",), "violated"),
        ("7.5", ("7.5", "6.0"), "violated"),
        ("8.0", ("8.9",), "ok"),
        ("9.0a", ("9.0",), "ok"),
        ("10.0a", ("10.3",), "violated"),
        ("", ("7.5",), "ok"),
        ("", ("8.0",), "violated"),
        ("nonsense 7.5", ("7.5",), "ok"),
        ("7.5", (), "violated"),
        ("7.5", (None,), "unknown"),
    ],
)
def test_the_code_of_an_artifact_against_the_gpus(staged, code, devices, status):
    annotations = {ANNOTATION_COMPUTE_CAPABILITIES: code} if code else {}
    runtime, found = staged("", annotations=annotations)
    gpus = tuple(replace(T4X2.gpus[0], compute_capability=device) for device in devices)
    check = device_code_check(found.profile, runtime, replace(T4X2, gpus=gpus))
    assert check.status == status
    assert device_code_check(found.profile, runtime, replace(T4X2, gpus=None)).status == "unknown"


def test_no_code_runs_on_what_is_no_device():
    assert not runs_on(["7.5"], "")
    assert not runs_on(["7.5"], "seven")
    assert not runs_on([], "7.5")


# -- the probe ------------------------------------------------------------------------------------


def test_the_recorded_report_of_two_h200_as_checks():
    good = by_name(report_checks(json.loads((DATA / "probe" / "h200x2-sm90.json").read_text())))
    assert set(good) == {"probe.gpu0", "probe.gpu1", "probe.link0-1", "probe.link1-0"}
    assert {check.status for check in good.values()} == {"ok"}
    assert "4 of 4 checks right" in good["probe.gpu0"].found
    bad = by_name(report_checks(json.loads((DATA / "probe" / "h200x2-sm75.json").read_text())))
    assert {check.status for check in bad.values()} == {"violated"}
    assert "no-kernel-image" in bad["probe.gpu1"].reason
    assert "9.0" in bad["probe.gpu1"].remedy


def test_without_a_probe_doctor_says_how_to_get_one(publish):
    home = publish().home
    (check,) = probe_checks(home, T4X2)
    assert check.status == "unknown"
    assert "kvreg pull t4-probe" in check.remedy


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("import os; os.abort()", "violated", "ended with -6"),
        ("print('hello')", "violated", "ended with 0: hello"),
        ("print(open(PATH).read())", "ok", "checks right"),
    ],
)
def test_the_probe_runs_in_a_process_of_its_own(publish, tmp_path, program, status, said):
    source = program.replace("PATH", repr(str(DATA / "probe" / "h200x2-sm90.json")))
    found = publish(role="native", extra={"kvreg_probe/__main__.py": source.encode()})
    runtime = found.pull().runtime
    wheels = (replace(runtime.wheels[0], role="probe"),)
    replace(runtime, wheels=wheels).write(runtime.profile())
    assert read_runtime(runtime.folder).wheels[0].role == "probe"
    checks = list(probe_checks(found.home, T4X2))
    assert {check.status for check in checks} == {status}
    assert said in f"{checks[0].reason} {checks[0].found}"


def test_of_two_probes_the_one_whose_code_runs_here_is_taken(publish, monkeypatch):
    from kvreg.doctor import probe

    found = publish()
    first = replace(found.pull().runtime, annotations={ANNOTATION_COMPUTE_CAPABILITIES: "9.0"})
    second = replace(first, annotations={ANNOTATION_COMPUTE_CAPABILITIES: "7.5"}, created="0")
    both = [
        replace(item, wheels=(replace(item.wheels[0], role="probe"),)) for item in (first, second)
    ]
    monkeypatch.setattr(probe, "staged_folders", lambda home: both)
    monkeypatch.setattr(probe, "read_runtime", lambda runtime: runtime)
    assert probe.staged_probe(found.home, T4X2) == both[1]
    assert probe.staged_probe(found.home, replace(T4X2, gpus=())) == both[0]
