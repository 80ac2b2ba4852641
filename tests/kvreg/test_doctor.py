"""``kvreg doctor`` on the gallery of hosts: verdict, table and exit code of every row."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvreg import catalogue, toml
from kvreg.cli import main
from kvreg.doctor.check import Check, Diagnosis
from kvreg.doctor.diagnosis import diagnose
from kvreg.doctor.surroundings import shared_memory_needed
from kvreg.facts import load
from kvreg.facts.model import Unknown
from tests.data.facts.compose import COMPOSED

FOLDER = Path(__file__).resolve().parents[1] / "data" / "facts"
GALLERY = toml.loads((FOLDER / "gallery.toml").read_text())
PROFILE = "t4x2-cu128"


@pytest.fixture
def doctor(monkeypatch, tmp_path):
    """Run doctor on a row of the gallery, or on a file; result and exit code."""
    monkeypatch.delenv("KVREG_PROFILES", raising=False)
    monkeypatch.setenv("KVREG_HOME", str(tmp_path / "home"))

    def run(name, *options, profile=PROFILE):
        path = FOLDER / f"{name}.json" if isinstance(name, str) else name
        words = ["doctor", *([profile] if profile else []), "--facts", str(path), *options]
        return CliRunner().invoke(main, words, catch_exceptions=False)

    return run


def names(checks, status):
    return {check["name"] for check in checks if check["status"] == status}


@pytest.mark.parametrize("name", GALLERY)
def test_every_row_has_its_verdict_table_and_exit_code(doctor, name):
    row = GALLERY[name]
    for options, code in (((), row["exit"][0]), (("--strict",), row["exit"][1])):
        result = doctor(name, "--json", *options)
        assert result.exit_code == code
        checks = json.loads(result.stdout)["checks"]
        assert names(checks, "violated") == set(row.get("violated", ()))
        assert names(checks, "unknown") == set(row.get("unknown", ()))
        assert names(checks, "compatible-not-validated") == set(row.get("not_validated", ()))
        for check in checks:
            assert (check["remedy"] is not None) == (check["status"] in ("violated", "unknown"))
    text = doctor(name)
    assert text.exit_code == row["exit"][0]
    table = {line.split()[0]: line for line in text.stdout.splitlines() if line.strip()}
    words = {"ok": " ok ", "violated": " VIOLATED ", "unknown": " UNKNOWN "}
    for check in checks:
        assert words.get(check["status"], " not validated ") in table[check["name"]]
    for said in row.get("says", ()):
        assert said in text.stdout


def test_the_gallery_is_what_is_in_the_folder_and_composed_files_are_as_composed():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(GALLERY)
    assert {name for name, row in GALLERY.items() if row["origin"] == "composed"} == set(COMPOSED)
    for name, make in COMPOSED.items():
        assert load(FOLDER / f"{name}.json") == make()


@pytest.mark.parametrize("key", [key for key, _ in catalogue.find_profile(PROFILE).host.facts()])
def test_no_unknown_fact_passes_as_ok(key):
    facts = load(FOLDER / "dual-t4.json")
    missing = Unknown("", "gone")
    where = {
        "os": ("system", "os"), "arch": ("system", "arch"), "glibc": ("system", "glibc"),
        "glibcxx": ("libstdcxx", "glibcxx"), "cxxabi": ("libstdcxx", "cxxabi"),
        "python": ("python", "version"), "python_tag": ("python", "tag"),
        "torch": ("torch", "version"), "torch_cuda": ("torch", "cuda"),
        "cxx11_abi": ("torch", "cxx11_abi"), "driver": ("driver", "version"),
        "cuda_driver": ("driver", "cuda"), "nccl": ("nccl", None),
    }  # fmt: skip
    if key in where:
        part, field = where[key]
        value = replace(getattr(facts, part), **{field: None}) if field else None
        unknown = replace(missing, fact=f"{part}.{field}" if field else part)
        facts = replace(facts, **{part: value}, unknown=(*facts.unknown, unknown))
    elif key == "gpu.count":
        facts = replace(facts, gpus=None, unknown=(replace(missing, fact="gpus"),))
    elif key == "gpu.topology":
        facts = replace(facts, topology=None, unknown=(replace(missing, fact="topology"),))
    else:
        gpus = tuple(replace(gpu, **{key.removeprefix("gpu."): None}) for gpu in facts.gpus)
        facts = replace(facts, gpus=gpus)
    diagnosis = diagnose(catalogue.find_profile(PROFILE), facts, here=False)
    (check,) = [check for check in diagnosis.checks if check.name == key]
    assert check.status == "unknown"
    assert check.found is None
    assert diagnosis.passes()
    assert not diagnosis.passes(strict=True)


def test_unmeasured_surroundings_are_unknown():
    facts = replace(load(FOLDER / "dual-t4.json"), disks=None, environment=None)
    diagnosis = diagnose(catalogue.find_profile(PROFILE), facts, here=False)
    unknown = {check.name for check in diagnosis.checks if check.status == "unknown"}
    assert {"shm", "disk.kvreg-home", "disk.tmp", "disk.home"} <= unknown
    assert not diagnosis.passes(strict=True)


def test_without_a_profile_all_are_judged_and_the_best_is_named(doctor):
    result = json.loads(doctor("dual-t4", "--json", profile=None).stdout)
    assert result["best"] == PROFILE
    assert {row["profile"]["name"] for row in result["profiles"]} == set(catalogue.folders())
    text = doctor("p100", profile=None)
    assert text.exit_code == 1
    assert "nearest: " in text.stdout


def test_mixed_gpus_are_judged_by_the_worst(doctor):
    facts = load(FOLDER / "dual-t4.json")
    first, second = facts.gpus
    other = replace(second, name="Tesla P4", compute_capability="6.1")
    diagnosis = diagnose(
        catalogue.find_profile(PROFILE), replace(facts, gpus=(first, other)), here=False
    )
    checks = {check.name: check for check in diagnosis.checks}
    assert checks["gpu.name"].status == "violated"
    assert checks["gpu.name"].found == "Tesla T4, Tesla P4"


def test_another_nccl_for_vllm_alone_is_named():
    facts = load(FOLDER / "dual-t4.json")
    other = replace(facts.nccl.candidates[1], path="/opt/libnccl.so.2", origin="VLLM_NCCL_SO_PATH")
    facts = replace(facts, nccl=replace(facts.nccl, other=other))
    diagnosis = diagnose(catalogue.find_profile(PROFILE), facts, here=False)
    (check,) = [check for check in diagnosis.checks if check.name == "nccl.files"]
    assert check.status == "violated"
    assert "/opt/libnccl.so.2" in check.reason
    assert "VLLM_NCCL_SO_PATH" in check.remedy


def test_shared_memory_is_needed_by_several_gpus_alone():
    assert shared_memory_needed(1) == 0
    assert 3 * 240 << 20 < shared_memory_needed(2) < 1 << 30


def test_a_profile_that_denies_a_setting_finds_it_set(tmp_path):
    folder = catalogue.find_folder(PROFILE)
    copy = tmp_path / PROFILE
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    text = (copy / "profile.toml").read_text()
    rule = '[[runtime.environment.deny]]\nname = "NCCL_P2P_LEVEL"\nvalues = ["SYS"]\nreason = "r"\n'
    (copy / "profile.toml").write_text(text.replace("[build]\n", f"{rule}\n[build]\n", 1))
    profile = catalogue.find_profile(f"{copy}/")
    facts = load(FOLDER / "dual-t4.json")
    for value, status in (("SYS", "violated"), ("PHB", "ok")):
        found = replace(facts, environment={"NCCL_P2P_LEVEL": value})
        assert diagnose(profile, found, here=False).status == status


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not JSON"),
        ("[]", "does not hold host facts"),
        ('{"schema": 2}', "another schema"),
        ("[" * 100_000, "is not JSON"),
        ('{"schema": 1}', "required key is missing"),
    ],
)
def test_files_that_are_no_facts(doctor, tmp_path, content, said):
    path = tmp_path / "facts.json"
    path.write_text(content)
    result = doctor(path)
    assert result.exit_code == 1
    assert said in result.stderr


def test_usage(doctor, tmp_path):
    assert doctor(tmp_path / "none.json").exit_code == 3
    assert doctor("dual-t4", "--probe").exit_code == 2
    assert doctor("dual-t4", profile="nothing").exit_code == 3


def test_the_status_of_a_diagnosis_is_its_worst():
    def of(*statuses):
        checks = [Check("a", "b", None, "c", status, "d") for status in statuses]
        return Diagnosis("p", "sha256:0", "sha256:1", None, tuple(checks))

    assert of("ok", "compatible-not-validated").passes()
    assert not of("ok", "compatible-not-validated").passes(strict=True)
    assert of("ok", "unknown", "compatible-not-validated").status == "unknown"
    assert of("unknown", "violated").status == "violated"
    assert not of("violated", "ok").passes()
    assert of().passes(strict=True)
