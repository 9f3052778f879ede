"""Tests of the statistics over seeds, whose results are compared with SciPy, with R, and with values computed by
hand."""

import math

import pytest

stats = pytest.importorskip("scipy.stats")
pytest.importorskip("statsmodels")

from lazy_lab.statistics import (  # noqa: E402
    Interval,
    detectable,
    holm,
    p_value,
    paired_difference,
    student_interval,
)

# R's data set `sleep` (extra hours of sleep, Student 1908). t.test(extra ~ group, paired = TRUE) prints for group 1
# minus group 2: t = -4.0621, p-value = 0.002833, interval -2.4598858 to -0.7001142, mean difference -1.58.
SLEEP = [
    dict(enumerate([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])),
    dict(enumerate([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])),
]


def test_paired_difference_and_p_match_r():
    found = paired_difference(SLEEP[1], SLEEP[0])
    assert found.mean == pytest.approx(-1.58)
    assert (found.low, found.high) == pytest.approx((-2.4598858, -0.7001142), abs=1e-7)
    differences = [SLEEP[0][patient] - SLEEP[1][patient] for patient in range(10)]
    assert p_value(differences) == pytest.approx(0.002833, abs=5e-7)
    assert p_value([value + 0.5 for value in differences], 0.5) == pytest.approx(0.002833, abs=5e-7)


def test_differences_are_paired_by_seed():
    softmax, lazy = {1: 2.0, 2: 2.5, 3: 2.2, 7: 9.0}, {3: 2.3, 2: 2.4, 1: 2.2, 8: 0.0}
    found = paired_difference(softmax, lazy)
    interval = stats.ttest_rel([2.2, 2.4, 2.3], [2.0, 2.5, 2.2]).confidence_interval(0.95)
    assert (found.count, found.low, found.high) == (3, pytest.approx(interval.low), pytest.approx(interval.high))
    assert paired_difference({1: 1.0}, {2: 1.0}) is None


def test_one_value_and_equal_values_have_no_p():
    assert student_interval([1.5]) == Interval(1.5, 1)
    assert student_interval([]) is p_value([1.5]) is p_value([0.1, 0.1, 0.1]) is None


def test_holm_by_hand():
    # Expected values: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") in R. The sorted p values are multiplied by 4, 3, 2,
    # 1 and then made non-decreasing.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == pytest.approx([1, 1])


@pytest.mark.parametrize("seeds", [3, 4, 10, 20])
def test_detectable_difference_has_the_power_of_the_noncentral_t(seeds):
    difference = detectable(Interval(0, seeds, deviation=0.01))
    critical = stats.t.ppf(0.975, seeds - 1)
    assert stats.nct.sf(critical, seeds - 1, difference / 0.01 * math.sqrt(seeds)) == pytest.approx(0.8, abs=1e-6)


def test_detectable_difference_of_two_seeds_by_the_closed_form():
    # With two seeds, the t test finds a difference if |x1 + x2| > c |x1 - x2|, where c is the critical value. x1 + x2
    # and x1 - x2 are independent and normal with standard deviation sqrt(2). The power is the mean of P(|x1 - x2| < |x1
    # + x2| / c) over the distribution of x1 + x2.
    critical = stats.t.ppf(0.975, 1)
    difference = detectable(Interval(0, 2, deviation=1))
    power = stats.norm.expect(lambda x: 2 * stats.norm.cdf(abs(x + math.sqrt(2) * difference) / critical) - 1)
    assert power == pytest.approx(0.8, abs=1e-6)
