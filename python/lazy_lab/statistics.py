"""Statistics over seeds: paired intervals, p values, Holm's correction, and the smallest detectable difference.

A sample has one value per seed, that is, per training of a model. Models with the same seed have the same initial
weights and order of tokens, so differences are paired by seed. SciPy and statsmodels are imported where they are used,
because `lazy uptrain` imports this module before it checks that they are installed.
"""

import math
from dataclasses import dataclass
from statistics import fmean, stdev

LEVEL = 0.95


@dataclass
class Interval:
    """A mean over `count` values, the bounds of its confidence interval, and the sample standard deviation of the
    values. Bounds and deviation are None for a single value."""

    mean: float
    count: int
    low: float | None = None
    high: float | None = None
    deviation: float | None = None


def student_interval(values):
    """Returns the mean and its two-sided 95 % Student t interval, or None without any value."""
    values = [float(value) for value in values]
    if len(values) < 2:
        return Interval(values[0], 1) if values else None
    from scipy.stats import t

    mean, deviation = fmean(values), stdev(values)
    half = float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * deviation / math.sqrt(len(values))
    return Interval(mean, len(values), mean - half, mean + half, deviation)


def paired_difference(first, second):
    """Returns the interval of the paired differences second - first, or None if the arguments, which map seeds to
    values, have no seed in common."""
    return student_interval(second[seed] - first[seed] for seed in sorted(first.keys() & second.keys()))


def p_value(values, bound=0):
    """Returns the two-sided p of a one-sample t test of the mean of the values against `bound`. It is None for fewer
    than two values, and for equal values, because their variance is not known."""
    values = [float(value) for value in values]
    if len(set(values)) < 2:
        return None
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(values, bound).pvalue)


def holm(p_values):
    """Returns a list of p values with Holm's correction for multiple tests (Holm 1979)."""
    from statsmodels.stats.multitest import multipletests

    return multipletests(p_values, method="holm")[1].tolist()


def detectable(difference, power=0.8):
    """Returns the smallest true mean difference that a two-sided paired t test at the 5 % level detects with a
    probability of `power`, for the number of seeds and the standard deviation of the Interval `difference`."""
    from statsmodels.stats.power import TTestPower

    return difference.deviation * TTestPower().solve_power(nobs=difference.count, alpha=1 - LEVEL, power=power)
