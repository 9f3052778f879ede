"""Means over seeds and paired 95 % intervals."""

import math
from dataclasses import dataclass

LEVEL = 0.95


@dataclass
class Interval:
    """A mean over `count` values, with the bounds of its confidence interval, or None for fewer than two values."""

    mean: float
    count: int
    low: float | None = None
    high: float | None = None


def student_interval(values):
    """Mean and two-sided 95 % Student t interval of the mean."""
    values = list(values)
    mean = sum(values) / len(values)
    if len(values) < 2:
        return Interval(mean, len(values))
    from scipy.stats import t

    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    half = float(t.ppf((1 + LEVEL) / 2, len(values) - 1)) * deviation / math.sqrt(len(values))
    return Interval(mean, len(values), mean - half, mean + half)


def paired_difference(first, second):
    """Interval of second - first over the seeds that both have; the arguments map seeds to values. None if no seed is
    common."""
    seeds = sorted(first.keys() & second.keys())
    return student_interval(second[seed] - first[seed] for seed in seeds) if seeds else None
