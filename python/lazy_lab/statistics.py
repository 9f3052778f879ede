"""Statistics over seeds: paired intervals, p values, Holm's correction, and the smallest detectable difference.

A sample has one value per seed, that is, per training of a model. Models with the same seed have the same initial
weights and order of tokens, so differences are paired by seed. An interval is a two-sided 95 % Student t interval. The
function `verdict` decides about a claim: the answers "reproduced" and "refuted" need a corrected p value below 0.05.
"""

import functools
import itertools
import math
from dataclasses import dataclass

LEVEL = 0.95


@dataclass
class Interval:
    """A mean over `count` values, the bounds of its confidence interval, and the sample standard deviation of the
    values. Bounds and deviation are None for fewer than two values."""

    mean: float
    count: int
    low: float | None = None
    high: float | None = None
    deviation: float | None = None


def student_interval(values):
    """Returns the mean and its two-sided 95 % Student t interval."""
    values = [float(value) for value in values]
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Interval(mean, len(values))
    from scipy.stats import t

    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    half = float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * deviation / math.sqrt(len(values))
    return Interval(mean, len(values), mean - half, mean + half, deviation)


def paired_values(first, second):
    """Returns {seed: second - first} for the seeds that occur in both. Both arguments map seeds to values."""
    return {seed: second[seed] - first[seed] for seed in sorted(set(first.keys()) & set(second.keys()))}


def paired_difference(first, second):
    """Returns the interval of the paired differences second - first, or None if the arguments, which map seeds to
    values, have no seed in common."""
    differences = paired_values(first, second)
    return student_interval(differences.values()) if differences else None


def p_value(values, bound=0):
    """Returns the two-sided p of a one-sample t test of the mean of the values against `bound`. It is None for fewer
    than two values, and for equal values, because their variance is not known."""
    values = [float(value) for value in values]
    if len(values) < 2 or len(set(values)) < 2:
        return None
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(values, bound).pvalue)


def holm(p_values):
    """Returns p values with Holm's correction for multiple tests (Holm 1979), as a list or dictionary like the
    argument. None represents a claim that was not measured or has no p value. It remains None, and the correction does
    not count it as a test."""
    if isinstance(p_values, dict):
        return dict(zip(p_values, holm(list(p_values.values()))))
    measured = [index for index, p in enumerate(p_values) if p is not None]
    adjusted = [None] * len(p_values)
    if measured:
        from statsmodels.stats.multitest import multipletests

        corrected = multipletests([p_values[index] for index in measured], method="holm")[1]
        for index, p in zip(measured, corrected):
            adjusted[index] = float(p)
    return adjusted


def verdict(values, adjusted_p, bound=0, side="below"):
    """Returns the answer to the claim that the mean of the values is on a side of `bound`, "below" or "above".

    The answer is "reproduced" if the whole interval is on the claimed side and the corrected p is below 0.05, "refuted"
    if the whole interval is on the opposite side and the corrected p is below 0.05, and otherwise "open"."""
    interval = student_interval(values)
    if interval.low is None or adjusted_p is None or adjusted_p >= 1 - LEVEL:
        return "open"
    if interval.low <= bound <= interval.high:
        return "open"
    return "reproduced" if (interval.high < bound) == (side == "below") else "refuted"


@functools.cache
def detectable_multiple(seeds, power, level):
    """Returns the smallest true mean difference that a two-sided paired t test at significance level `level` detects
    with probability `power`. The unit of the result is the standard deviation of the differences."""
    from scipy.optimize import brentq
    from scipy.stats import chi, norm, t

    degrees = seeds - 1
    critical = t.ppf(1 - level / 2, degrees) / math.sqrt(degrees)

    def excess_power(multiple):
        # The sample standard deviation times sqrt(degrees) has a chi distribution. SciPy's noncentral t returns NaN for
        # the large shifts of two seeds.
        shift = multiple * math.sqrt(seeds)
        return chi(degrees).expect(lambda x: norm.sf(critical * x - shift) + norm.cdf(-critical * x - shift)) - power

    upper = 1.0
    while excess_power(upper) < 0:
        upper *= 2
    return brentq(excess_power, 0, upper)


def detectable(standard_deviation, seeds, power=0.8, tests=1):
    """Returns the smallest true difference that a two-sided paired t test at the 5 % level detects with probability
    `power`.

    standard_deviation: of the differences over seeds, in the unit of the result. tests: number of claims in the family;
    the level is 5 % divided by this number, as in the first step of Holm's correction. Returns None for fewer than two
    seeds."""
    if seeds < 2:
        return None
    return standard_deviation * detectable_multiple(seeds, power, (1 - LEVEL) / tests)


def contrasts(values):
    """Returns the effects of a full factorial design with two levels per factor: {(0,): main effect of the first
    factor, (0, 1): interaction of the first two factors, ...}.

    values: {levels: value}, where levels is a tuple with 0 or 1 per factor. An effect is the sum of sign times value,
    divided by half the number of cells: the mean at the high level minus the mean at the low level."""
    factors = range(len(next(iter(values))))
    subsets = itertools.chain.from_iterable(
        itertools.combinations(factors, size) for size in range(1, len(factors) + 1)
    )
    return {
        subset: sum(value * math.prod(2 * levels[factor] - 1 for factor in subset) for levels, value in values.items())
        / (len(values) / 2)
        for subset in subsets
    }
