"""The rule that turns a row of verdicts into one answer.

First sustained favourable concurrency: the smallest tested concurrency whose verdict is favourable
and stays so at every larger tested one. A gated concurrency is not favourable, so it ends a
sustained run below it; gated at the top of the grid, the result is ``RESOURCE_GATED@C`` with C that
topmost concurrency, whatever lies below: the regime that the word "sustained" is about has no valid
measurement. (C is the top of the grid also when more below it are gated: the rule speaks of the
top. `Crossover.gated_from` says where the gated run starts.) Otherwise ``none``.

>>> find_crossover({1: UNFAVOURABLE, 4: FAVOURABLE, 8: INCONCLUSIVE, 16: FAVOURABLE}).answer
16
>>> find_crossover({1: FAVOURABLE, 32: FAVOURABLE, 64: GATED}).answer
'RESOURCE_GATED@64'
>>> find_crossover({1: UNFAVOURABLE, 4: FAVOURABLE, 8: INCONCLUSIVE}).answer
'none'
"""

from collections.abc import Mapping
from dataclasses import dataclass

FAVOURABLE, UNFAVOURABLE = "favourable", "unfavourable"
INCONCLUSIVE, GATED = "inconclusive", "gated"
VERDICTS = (FAVOURABLE, UNFAVOURABLE, INCONCLUSIVE, GATED)


@dataclass(frozen=True)
class Crossover:
    """The first sustained favourable concurrency of one model and workload, with its reasons.

    `answer` is an integer, ``"none"`` or ``"RESOURCE_GATED@C"``. `at_top` marks a crossover that
    nothing larger was tested to sustain.
    """

    answer: int | str
    at_top: bool
    gated: tuple[int, ...]
    gated_from: int | None


def find_crossover(verdicts: Mapping[int, str]) -> Crossover:
    """Apply the rule to the verdict of every tested concurrency (at least one)."""
    grid = sorted(verdicts)
    gated = tuple(c for c in grid if verdicts[c] == GATED)
    gated_run = _top_run(verdicts, GATED)
    favourable_run = _top_run(verdicts, FAVOURABLE)
    if gated_run is not None:
        return Crossover(f"RESOURCE_GATED@{grid[-1]}", False, gated, gated_run)
    if favourable_run is not None:
        return Crossover(favourable_run, favourable_run == grid[-1], gated, None)
    return Crossover("none", False, gated, None)


def _top_run(verdicts: Mapping[int, str], wanted: str) -> int | None:
    """Where the unbroken run of `wanted` that ends at the top of the grid begins."""
    start = None
    for concurrency in sorted(verdicts, reverse=True):
        if verdicts[concurrency] != wanted:
            break
        start = concurrency
    return start


def verdict(low: float | None, high: float | None, *, higher_is_better: bool) -> str:
    """What an interval of candidate minus baseline says: which side of zero it lies on."""
    if low is None or high is None:
        return INCONCLUSIVE
    if low > 0:
        return FAVOURABLE if higher_is_better else UNFAVOURABLE
    if high < 0:
        return UNFAVOURABLE if higher_is_better else FAVOURABLE
    return INCONCLUSIVE
