"""Reading CMake files without CMake."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

import builder.upstream.cmake as cmake
import builder.upstream.once
from builder.upstream.buildfiles import read_build
from builder.upstream.cmake import commands, intersection, run
from tests.support.upstream import CMAKE, FLASH, NEW


def variables(text: str, **known: str) -> dict[str, str]:
    return run({"f": text}, "f", known).variables


@pytest.mark.parametrize("module", [cmake, builder.upstream.once])
def test_examples(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("condition", "known", "taken"),
    [
        ('A STREQUAL "x"', {"A": "x"}, True),
        ("A VERSION_GREATER_EQUAL 12.8", {"A": "12.4.131"}, False),
        ("A VERSION_GREATER_EQUAL 12.8", {"A": "13.0"}, True),
        ("NOT A AND B", {"A": "", "B": "ON"}, True),
        ("NOT (A OR B)", {"A": "", "B": "ON"}, False),
        ("A AND UNKNOWN", {"A": "OFF"}, False),
        ("A OR UNKNOWN", {"A": "ON"}, True),
        ("${A} VERSION_LESS 3", {"A": "2"}, True),
        ("DEFINED ENV{HOME}", {}, False),
        ("DEFINED A AND A VERSION_GREATER 1", {"A": "2"}, True),
    ],
)
def test_a_known_condition_takes_one_branch(condition, known, taken):
    text = f"if({condition})\n set(R yes)\nelse()\n set(R no)\nendif()"
    assert variables(text, **known)["R"] == ("yes" if taken else "no")


def test_of_an_unknown_condition_both_branches_may_run():
    done = run(
        {"f": "if(UNKNOWN)\nmake(a)\nelseif(TWO)\nmake(b)\nelse()\nmake(c)\nendif()"}, "f", {}
    )
    assert [arguments for _, arguments in done.named("make")] == [("a",), ("b",), ("c",)]


def test_what_is_known_survives_a_branch_that_may_not_run():
    text = 'if(UNKNOWN)\nset(LANG "HIP")\nendif()\nif(LANG STREQUAL "CUDA")\nset(R 1)\nendif()'
    assert variables(text, LANG="CUDA")["R"] == "1"


def test_only_a_certain_return_ends_a_file():
    assert "R" not in variables("if(A)\nreturn()\nendif()\nset(R 1)", A="ON")
    assert variables("if(UNKNOWN)\nreturn()\nendif()\nset(R 1)")["R"] == "1"


def test_nested_branches_comments_brackets_and_lines():
    text = (
        '#[[ a (comment\n over lines ]]\nif(A) # if(\n  if(B)\n    set(R "a;b\\"c")\n'
        "  else()\n    set(R no)\n  endif()\nelse()\n  set(R never)\nendif()\nset(S [=[x]]y]=])\n"
    )
    done = run({"f": text}, "f", {"A": "1", "B": "1"})
    assert done.variables["R"].startswith("a;b")
    assert done.variables["S"] == "x]]y"
    assert done.places["R"] == "f:5"
    assert done.places["S"] == "f:12"


def test_functions_are_passed_over_and_includes_followed():
    files = {"f": "function(x)\nset(R bad)\nendfunction()\ninclude(g)\ninclude(f)", "g": "set(R g)"}
    assert run(files, "f", {}).variables["R"] == "g"


@given(st.text(alphabet='if()elsndeaset"#[]=${}\\\n ;AB_', max_size=200))
def test_no_text_stops_the_reader(text):
    found = list(commands(text, "f"))
    assert all(1 <= item.line <= text.count("\n") + 1 for item in found)
    run({"f": text}, "f", {"A": "1"})


@given(st.lists(st.sampled_from(["7.5", "8.0", "8.9", "9.0", "9.0a", "10.0f", "8.0+PTX"])))
def test_kernels_are_compiled_for_targets_alone(sources):
    targets = ["7.5", "8.9", "12.0"]
    found = intersection(sources, targets)
    assert set(found) <= set(targets)
    assert ("7.5" in found) == ("7.5" in sources)
    assert ("12.0" in found) == ("8.0+PTX" in sources)


def test_a_build_for_one_capability_with_one_compiler():
    text = CMAKE.format(torch="2.10.0", new="8.0;9.0", old="7.5;8.0", marlin="7.5;8.0+PTX")
    files = {
        "CMakeLists.txt": text,
        "cmake/external_projects/flash.cmake": FLASH.format(commit="c" * 40),
        "cmake/external_projects/new.cmake": NEW,
    }
    old = read_build(files, "12.4.131", ("7.5",), "3.12")
    assert old.supports("7.5")
    assert old.supported.place == "CMakeLists.txt:9"
    assert old.torch.value == "2.10.0"
    assert "MARLIN_ARCHS" in old.groups
    assert {(e.name, e.revision, e.variables) for e in old.externals} == {
        ("vllm-flash-attn", "c" * 40, ("VLLM_FLASH_ATTN_SRC_DIR",)),
        ("new", "0123456789012345678901234567890123456789", ("NEW_SRC_DIR",)),
    }
    new = read_build(files, "13.0.88", ("7.5",), "3.12")
    assert not new.supports("7.5")
    assert "MARLIN_ARCHS" not in new.groups
