"""The statistics against scipy.stats, and the promises of the intervals against simulation."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("scipy")
from scipy import stats

from kvreg.analysis.statistics import (
    detectable_effect,
    estimate,
    fit_prior,
    holm,
    moderate,
    welch,
)

values = st.floats(-1e6, 1e6, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-6)


@given(st.lists(values, min_size=2, max_size=12).filter(lambda x: max(x) - min(x) > 1e-3))
def test_interval_and_p_value_are_those_of_scipy(sample: list[float]) -> None:
    found = estimate(sample)
    expected = stats.ttest_1samp(sample, 0).confidence_interval(0.95)
    scale = max(map(abs, sample))
    assert found.low == pytest.approx(expected.low, abs=1e-9 * scale)
    assert found.high == pytest.approx(expected.high, abs=1e-9 * scale)
    assert found.p == pytest.approx(stats.ttest_1samp(sample, 0).pvalue, rel=1e-6, abs=1e-12)


@given(st.lists(values, min_size=2, max_size=12), st.randoms())
def test_order_changes_not_a_bit(sample: list[float], shuffler: random.Random) -> None:
    other = list(sample)
    shuffler.shuffle(other)
    assert estimate(other) == estimate(sample)


def test_one_value_has_a_mean_and_no_interval() -> None:
    found = estimate([3.0])
    assert (found.mean, found.interval, found.p) == (3.0, None, None)


def test_coverage_of_the_interval_over_2000_designs() -> None:
    """5 pairs, a shared drift of the session, noise of each server: the truth is inside 95 %."""
    rng = random.Random(20260101)
    designs, hits = 2000, 0
    for _ in range(designs):
        truth = rng.uniform(-5, 5)
        differences = []
        for _ in range(5):
            session = rng.gauss(100, 10)
            one = session + rng.gauss(0, 2)
            two = session + truth + rng.gauss(0, 3)
            differences.append(two - one)
        found = estimate(differences)
        assert found.low is not None and found.high is not None
        hits += found.low <= truth <= found.high
    low, high = stats.binom.interval(0.999, designs, 0.95)
    assert low <= hits <= high


@pytest.mark.parametrize("n", [2, 3, 5, 10, 30])
def test_detectable_effect_has_the_power_that_it_claims(n: int) -> None:
    df, effect = n - 1, detectable_effect(n)
    critical = stats.t.ppf(0.975, df)
    assert 1 - stats.nct.cdf(critical, df, effect * math.sqrt(n)) == pytest.approx(0.8, abs=1e-4)


def test_detectable_effect_by_simulation() -> None:
    rng = random.Random(7)
    effect, shown, runs = detectable_effect(5), 0, 4000
    for _ in range(runs):
        found = estimate([rng.gauss(effect, 1) for _ in range(5)])
        assert found.low is not None
        shown += found.low > 0
    low, high = stats.binom.interval(0.999, runs, 0.8)
    assert low <= shown <= high


def test_holm_of_a_worked_example() -> None:
    adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert adjusted == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})


@given(st.dictionaries(st.integers(), st.floats(0, 1), min_size=1))
def test_holm_keeps_order_and_is_at_most_bonferroni(p_values: dict[int, float]) -> None:
    adjusted = holm(p_values)
    for key, p in p_values.items():
        assert p <= adjusted[key] <= min(1.0, p * len(p_values))
    ordered = sorted(p_values, key=lambda key: p_values[key])
    assert [adjusted[key] for key in ordered] == sorted(adjusted.values())


@pytest.mark.filterwarnings("ignore:Precision loss")  # of the oracle's own moments
@given(st.lists(values, min_size=2, max_size=9), st.lists(values, min_size=2, max_size=9))
def test_welch_is_that_of_scipy(a: list[float], b: list[float]) -> None:
    spread = max(max(a) - min(a), max(b) - min(b))
    if spread < 1e-3:
        return
    found = welch(a, b)
    assert found is not None and found.low is not None and found.high is not None
    expected = stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    scale = max(map(abs, [*a, *b]))
    assert found.low == pytest.approx(expected.low, rel=1e-6, abs=1e-9 * scale)
    assert found.high == pytest.approx(expected.high, rel=1e-6, abs=1e-9 * scale)


def test_prior_is_recovered_from_many_points() -> None:
    """Variances drawn from a known scaled inverse chi-square come back as that prior."""
    rng = random.Random(11)
    df, variance = 8.0, 0.03**2
    points = []
    for _ in range(3000):
        sigma2 = df * variance / (2 * rng.gammavariate(df / 2, 1))
        points.append([rng.gauss(0.1, math.sqrt(sigma2)) for _ in range(5)])
    prior = fit_prior(points)
    assert prior is not None
    assert prior.df == pytest.approx(df, rel=0.15)
    assert math.sqrt(prior.variance) == pytest.approx(0.03, rel=0.05)
    hits = sum(m.low <= 0.1 <= m.high for m in (moderate(point, prior) for point in points))
    low, high = stats.binom.interval(0.999, len(points), 0.95)
    assert low <= hits <= high


def test_equal_variances_are_pooled_wholly() -> None:
    rng = random.Random(3)
    points = [[rng.gauss(0, 1) for _ in range(5)] for _ in range(40)]
    # the same sample variance everywhere: less spread than chance allows
    points = [[x / estimate(point).sd for x in point] for point in points]  # type: ignore[operator]
    prior = fit_prior(points)
    assert prior is not None and math.isinf(prior.df)
    found = moderate(points[0], prior)
    mean = sum(points[0]) / 5
    assert found.high - mean == pytest.approx(1.959964 * math.sqrt(prior.variance / 5), rel=1e-4)


def test_no_prior_from_nothing() -> None:
    assert fit_prior([]) is None
    assert fit_prior([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]) is None
