"""The statistics: paired Student t, Holm's correction, power, and a moderated cross-check.

Sums are correctly rounded (`math.fsum`), so that no result depends on the order of the rows.
scipy.special holds the distribution functions; it is imported when the first one is needed.
"""

import functools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kvreg.errors import KvregError

LEVEL = 0.95
POWER = 0.8

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Estimate:
    """A mean of `n` values with its two-sided interval; None where n < 2 leaves none.

    `sd` is the sample standard deviation, `p` the two-sided p-value of a mean of zero.
    """

    n: int
    mean: float
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None

    @property
    def interval(self) -> list[float] | None:
        """``[low, high]`` or None."""
        return None if self.low is None or self.high is None else [self.low, self.high]


def estimate(values: Sequence[float], level: float = LEVEL) -> Estimate:
    """Mean and two-sided Student t interval of `values` (at least one)."""
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return Estimate(n, mean)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = t_quantile(n - 1, level) * sd / math.sqrt(n)
    return Estimate(n, mean, sd, mean - half, mean + half, _p_value(mean, sd, n))


def _p_value(mean: float, sd: float, n: int) -> float:
    if sd == 0:
        return 1.0 if mean == 0 else 0.0
    return 2 * float(_special().stdtr(n - 1, -abs(mean) * math.sqrt(n) / sd))


@functools.cache
def t_quantile(df: float, level: float = LEVEL) -> float:
    """The t that a two-sided interval of `level` reaches to, `df` degrees of freedom."""
    return float(_special().stdtrit(df, (1 + level) / 2))


@functools.cache
def detectable_effect(n: int, level: float = LEVEL, power: float = POWER) -> float:
    """The smallest true mean, in standard deviations of the pairs' differences, that `n` pairs
    show as different from zero with probability `power`.

    From the noncentral t distribution; the far tail, below 1e-6 for any design of ours, is left
    out.
    """
    df = n - 1
    ncp = float(_special().nctdtrinc(df, 1 - power, t_quantile(df, level)))
    return ncp / math.sqrt(n)


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Holm's step-down adjusted p-values (Holm 1979): a family's chance of any false verdict is
    bounded whatever the dependence between its members."""
    ordered = sorted(p_values.items(), key=lambda item: item[1])
    adjusted: dict[Key, float] = {}
    running = 0.0
    for rank, (key, p) in enumerate(ordered):
        running = max(running, min(1.0, (len(ordered) - rank) * p))
        adjusted[key] = running
    return adjusted


@dataclass(frozen=True)
class Prior:
    """What the whole sweep says about one point's variance: scaled inverse chi-square.

    `variance` in units of the squared log ratio; `df` (its weight in pairs) may be infinite.
    """

    df: float
    variance: float
    points: int


@dataclass(frozen=True)
class Moderated:
    """Posterior of a point's mean log ratio: credible interval and P(ratio > 1)."""

    mean: float
    low: float
    high: float
    probability: float
    df: float


def fit_prior(log_ratios: Sequence[Sequence[float]]) -> Prior | None:
    """Empirical Bayes prior of the variances of many points (Smyth 2004, equations of section 6.2).

    Points with no spread tell nothing about it and are left out; None with fewer than three.
    """
    special = _special()
    found = [(len(values) - 1, estimate(values).sd) for values in log_ratios if len(values) > 1]
    spread = [(df, sd * sd) for df, sd in found if sd is not None and sd > 1e-12]
    if len(spread) < 3:
        return None
    e = [
        math.log(variance) - float(special.digamma(df / 2)) + math.log(df / 2)
        for df, variance in spread
    ]
    mean = math.fsum(e) / len(e)
    excess = math.fsum((x - mean) ** 2 for x in e) / (len(e) - 1)
    excess -= math.fsum(float(special.polygamma(1, df / 2)) for df, _ in spread) / len(spread)
    if excess <= 0:
        return Prior(math.inf, math.exp(mean), len(spread))
    df = 2 * _trigamma_inverse(excess)
    variance = math.exp(mean + float(special.digamma(df / 2)) - math.log(df / 2))
    return Prior(df, variance, len(spread))


def moderate(values: Sequence[float], prior: Prior, level: float = LEVEL) -> Moderated:
    """A point's posterior under `prior`: its own variance shrunk towards the sweep's."""
    own = estimate(values, level)
    n, df = own.n, own.n - 1
    if math.isinf(prior.df):
        variance, total = prior.variance, math.inf
    else:
        total = prior.df + df
        variance = (prior.df * prior.variance + df * (own.sd or 0.0) ** 2) / total
    error = math.sqrt(variance / n)
    # a t with very many degrees of freedom is the normal, and stdtrit knows no infinity
    reach = min(total, 1e9)
    half = t_quantile(reach, level) * error
    probability = float(_special().stdtr(reach, own.mean / error))
    return Moderated(own.mean, own.mean - half, own.mean + half, probability, total)


def _trigamma_inverse(y: float) -> float:
    """Solve trigamma(x) = y by Newton's method on 1/trigamma, which is nearly linear."""
    special = _special()
    if y > 1e7:
        return 1 / math.sqrt(y)
    if y < 1e-6:
        return 1 / y
    x = 0.5 + 1 / y
    for _ in range(50):
        tri = float(special.polygamma(1, x))
        step = tri * (1 - tri / y) / float(special.polygamma(2, x))
        x += step
        if -step / x < 1e-10:
            break
    return x


def welch(a: Sequence[float], b: Sequence[float], level: float = LEVEL) -> Estimate | None:
    """Mean of `b` minus mean of `a` with Welch's interval for unpaired samples of unequal variance.

    None when either has fewer than two values.
    """
    if len(a) < 2 or len(b) < 2:
        return None
    first, second = estimate(a, level), estimate(b, level)
    va, vb = (first.sd or 0.0) ** 2 / len(a), (second.sd or 0.0) ** 2 / len(b)
    mean, variance = second.mean - first.mean, va + vb
    if variance == 0:
        return Estimate(len(a) + len(b), mean, 0.0, mean, mean, 1.0 if mean == 0 else 0.0)
    df = variance**2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    error = math.sqrt(variance)
    half = t_quantile(df, level) * error
    p = 2 * float(_special().stdtr(df, -abs(mean) / error))
    return Estimate(len(a) + len(b), mean, error, mean - half, mean + half, p)


@functools.cache
def _special() -> Any:
    try:
        # not scipy.stats: it takes three times as long to import and calls these functions
        from scipy import special
    except ImportError as error:
        raise KvregError(
            "scipy is not installed",
            expected="scipy, which notebook images have",
            remedy="pip install scipy",
        ) from error
    return special
