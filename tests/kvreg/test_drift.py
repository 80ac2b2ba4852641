"""Published package lists against profiles: from which day, on which fact, what is needed."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kvreg.catalogue import find_profile
from kvreg.cli import main
from kvreg.drift import drift
from kvreg.errors import ContractError, KvregError, NotFoundError
from kvreg.facts.published import published_facts, read_published

HOSTS = Path(__file__).resolve().parents[1] / "data" / "hosts"
DAYS = sorted(HOSTS.glob("colab-gpu-*"))


def run(*words):
    return CliRunner().invoke(main, ["drift", *map(str, words)], catch_exceptions=False)


def write(folder, os_info="Ubuntu 22.04.5 LTS\nPython 3.12.13\n", freeze="torch==2.10.0+cu128\n"):
    folder.mkdir()
    (folder / "os-info.txt").write_text(os_info)
    (folder / "pip-freeze.txt").write_text(freeze)
    return folder


def test_the_image_breaks_on_torch_and_five_days_later_on_python():
    result = run("t4x2-cu128", *reversed(DAYS), "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["first_break"] == "2026-08-14"
    assert found["breaks"] == {
        "torch": "2026-08-14", "python": "2026-08-19", "python_tag": "2026-08-19",
    }  # fmt: skip
    first, second, third = found["days"]
    assert [day["date"] for day in found["days"]] == ["2026-05-22", "2026-08-14", "2026-08-19"]
    assert (first["status"], first["violated"], first["needs"]) == ("ok", [], [])
    assert second["violated"] == ["torch"]
    assert second["needs"][0] == "recompile the native wheel against torch 2.11.0+cu128"
    assert third["needs"][:2] == [
        "recompile the native wheel against torch 2.11.0+cu128",
        "compile that wheel for cp313, or as abi3",
    ]
    assert "torch 2.10.0+cu128 -> 2.11.0+cu128" in second["changed"]
    assert third["changed"] == ["Python 3.12.13 -> 3.13.15", "numpy 2.0.2 -> 2.1.3"]
    assert "gpu.name" in found["not_judged"]


def test_two_packages_with_one_file_leave_nccl_unknown():
    nccl = next(
        c for c in drift(find_profile("t4x2-cu128"), DAYS).days[1].checks if c.name == "nccl"
    )
    assert nccl.status == "unknown"
    assert "nvidia-nccl-cu12 2.28.9 and nvidia-nccl-cu13 2.31.2" in nccl.reason


def test_the_text_names_date_fact_and_need():
    text = run("t4x2-cu128", *DAYS).stdout
    assert "t4x2-cu128 breaks from 2026-08-14 on: torch\n" in text
    assert "needed: recompile the native wheel against torch 2.11.0+cu128" in text
    assert run("t4x2-cu128", DAYS[0]).exit_code == 0


@pytest.mark.parametrize(
    ("wheel", "need"),
    [
        ("demo-1-cp38-abi3-linux_x86_64.whl", "a new overlay for cp313; the wheel demo-1"),
        ("demo-1-cp312-cp312-linux_x86_64.whl", "recompile the wheel for cp313, or as abi3"),
        (None, "a new overlay for cp313 if the wheel is abi3; else recompile it for cp313"),
    ],
)
def test_another_python_alone_is_a_matter_of_the_wheels_tags(tmp_path, wheel, need):
    folder = write(tmp_path / "image-2026-06-01", "Ubuntu 22.04.5 LTS\nPython 3.13.1\n")
    found = drift(find_profile("t4x2-cu128"), [folder], wheel)
    assert found.days[0].violated == ("python", "python_tag")
    assert found.days[0].needs[0].startswith(need)


def test_a_runtime_that_links_no_torch_needs_no_new_wheel():
    needs = drift(find_profile("t4-probe"), DAYS).days[1].needs
    assert needs[0] == "a new profile for torch 2.11.0+cu128; the wheel is not linked against it"


def test_an_older_system_and_no_torch(tmp_path):
    folder = write(tmp_path / "image-2026-06-01", "Ubuntu 20.04.6 LTS\nPython 3.12.1\n", "a==1\n")
    day = drift(find_profile("t4x2-cu128"), [folder]).days[0]
    assert set(day.violated) == {"glibc", "glibcxx", "cxxabi", "torch", "torch_cuda", "cxx11_abi"}
    assert day.needs[0].startswith("compile on a system as old as the image's")


def test_lists_are_read(tmp_path):
    found = read_published(DAYS[0])
    assert found.day == date(2026, 5, 22)
    assert (found.os, found.python) == ("Ubuntu 22.04.5 LTS", "3.12.13")
    assert found.packages["torch"] == "2.10.0+cu128"
    assert found.apt["libnccl2"] == "2.25.1-1+cuda12.8"
    folder = write(
        tmp_path / "image-2026-06-01",
        freeze="# comment\nA_b==1\nx @ https://host/x-2.5-py3-none-any.whl#sha256=0\n-e git+a\n",
    )
    lists = read_published(folder)
    assert lists.packages == {"a-b": "1", "x": "2.5"}
    facts = published_facts(lists)
    assert (facts.torch, facts.gpus, facts.nccl) == (None, None, None)
    assert facts.reason("gpus.count") == "not in a published package list"
    assert published_facts(replace(lists, os="Other 1")).reason("libstdcxx.glibcxx") == "of Other 1"


def test_lists_that_are_none(tmp_path):
    for name, error in {"image": ContractError, "image-2026-13-01": ContractError}.items():
        with pytest.raises(error, match="date"):
            read_published(write(tmp_path / name))
    with pytest.raises(NotFoundError, match="os-info"):
        read_published(tmp_path / "none-2026-01-01")
    with pytest.raises(ContractError, match="operating system"):
        read_published(write(tmp_path / "a-2026-01-01", os_info="Ubuntu\n"))
    with pytest.raises(ContractError, match="no packages"):
        read_published(write(tmp_path / "b-2026-01-01", freeze="nothing\n"))
    assert run("t4x2-cu128", tmp_path / "none-2026-01-01").exit_code == 3
    assert run("t4x2-cu128").exit_code == 2


@given(st.text(max_size=80), st.text(max_size=200))
def test_any_lists_are_judged_or_refused(tmp_path_factory, os_info, freeze):
    folder = tmp_path_factory.mktemp("lists") / "image-2026-01-01"
    folder.mkdir()
    for name, text in {"os-info.txt": os_info, "pip-freeze.txt": freeze}.items():
        (folder / name).write_text(f"Ubuntu 22.04\nPython 3.12.1\na==1\n{text}", "utf-8", "replace")
    try:
        drift(find_profile("t4x2-cu128"), [folder]).to_dict()
    except KvregError:
        return
