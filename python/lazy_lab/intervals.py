"""Means over seeds and paired 95 % intervals."""

import math
from dataclasses import dataclass

LEVEL = 0.95


@dataclass
class Interval:
    """A mean over `count` values and the bounds of its confidence interval. The bounds are None for fewer than two
    values."""

    mean: float
    count: int
    low: float | None = None
    high: float | None = None


def student_interval(values):
    """Returns the mean and its two-sided 95 % Student t interval."""
    values = list(values)
    mean = sum(values) / len(values)
    if len(values) < 2:
        return Interval(mean, len(values))
    from scipy.stats import t

    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    half = float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * deviation / math.sqrt(len(values))
    return Interval(mean, len(values), mean - half, mean + half)


def paired_difference(first, second):
    """Returns the interval of the paired differences second - first. Both arguments map seeds to values; only the seeds
    that occur in both are used. Returns None if they have no seed in common."""
    seeds = sorted(first.keys() & second.keys())
    return student_interval(second[seed] - first[seed] for seed in seeds) if seeds else None
