"""The rule, against a second writing of it and against single noisy points."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvreg.analysis import crossover
from kvreg.analysis.crossover import (
    FAVOURABLE,
    GATED,
    INCONCLUSIVE,
    UNFAVOURABLE,
    VERDICTS,
    find_crossover,
    verdict,
)

grids = st.dictionaries(st.integers(1, 512), st.sampled_from(VERDICTS), min_size=1, max_size=8)


def test_examples_of_the_documentation() -> None:
    assert doctest.testmod(crossover).failed == 0


@given(grids)
def test_rule_word_by_word(verdicts: dict[int, str]) -> None:
    top = max(verdicts)
    sustained = [
        c
        for c in verdicts
        if all(verdicts[larger] == FAVOURABLE for larger in verdicts if larger >= c)
    ]
    if verdicts[top] == GATED:
        expected: int | str = f"RESOURCE_GATED@{top}"
    else:
        expected = min(sustained, default=None) or "none"
    assert find_crossover(verdicts).answer == expected


@given(grids)
def test_a_single_favourable_point_below_the_top_is_never_the_crossover(
    verdicts: dict[int, str],
) -> None:
    for noisy in sorted(verdicts)[:-1]:
        others = [UNFAVOURABLE, INCONCLUSIVE, GATED]
        quiet = {c: v if v in others else INCONCLUSIVE for c, v in verdicts.items()}
        found = find_crossover({**quiet, noisy: FAVOURABLE})
        assert not isinstance(found.answer, int)
        assert found.answer == find_crossover(quiet).answer


def test_top_of_the_grid_says_that_nothing_larger_was_tested() -> None:
    assert find_crossover({1: UNFAVOURABLE, 64: FAVOURABLE}).at_top
    assert not find_crossover({1: UNFAVOURABLE, 32: FAVOURABLE, 64: FAVOURABLE}).at_top


def test_gate_in_the_middle_ends_the_run_below_it() -> None:
    found = find_crossover({4: FAVOURABLE, 8: FAVOURABLE, 16: GATED, 32: FAVOURABLE})
    assert (found.answer, found.gated) == (32, (16,))


def test_several_gates_at_the_top() -> None:
    found = find_crossover({4: FAVOURABLE, 16: GATED, 32: GATED, 64: GATED})
    assert (found.answer, found.gated_from, found.gated) == ("RESOURCE_GATED@64", 16, (16, 32, 64))


@pytest.mark.parametrize(
    ("low", "high", "more", "less"),
    [
        (1.0, 2.0, FAVOURABLE, UNFAVOURABLE),
        (-2.0, -1.0, UNFAVOURABLE, FAVOURABLE),
        (-1.0, 1.0, INCONCLUSIVE, INCONCLUSIVE),
        (0.0, 1.0, INCONCLUSIVE, INCONCLUSIVE),
        (-1.0, 0.0, INCONCLUSIVE, INCONCLUSIVE),
        (None, None, INCONCLUSIVE, INCONCLUSIVE),
    ],
)
def test_side_of_zero(low: float | None, high: float | None, more: str, less: str) -> None:
    assert verdict(low, high, higher_is_better=True) == more
    assert verdict(low, high, higher_is_better=False) == less
