"""Intervals over seeds, compared with SciPy."""

import pytest

stats = pytest.importorskip("scipy.stats")

from lazy_lab.intervals import paired_difference, student_interval


@pytest.mark.parametrize("values", [[1.0, 2.0], [0.3, -0.1, 0.2], [5.0, 5.0, 5.5, 4.9, 5.2]])
def test_interval_matches_scipy(values):
    found = student_interval(values)
    mean = stats.tmean(values)
    low, high = stats.t.interval(0.95, len(values) - 1, mean, stats.sem(values))
    assert (found.mean, found.low, found.high) == pytest.approx((mean, low, high), rel=1e-12)


def test_differences_are_paired_by_seed():
    softmax, lazy = {1: 2.0, 2: 2.5, 3: 2.2, 7: 9.0}, {3: 2.3, 2: 2.4, 1: 2.2, 8: 0.0}
    found = paired_difference(softmax, lazy)
    interval = stats.ttest_rel([2.2, 2.4, 2.3], [2.0, 2.5, 2.2]).confidence_interval(0.95)
    assert (found.count, found.low, found.high) == (3, pytest.approx(interval.low), pytest.approx(interval.high))
    assert paired_difference({1: 1.0}, {2: 1.0}) is None


def test_one_value_has_no_interval():
    assert (student_interval([1.5]).mean, student_interval([1.5]).low) == (1.5, None)
