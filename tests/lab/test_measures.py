"""Tests of the measures of distance biases and attention sinks. The inputs are curves with known properties; some
results are compared with direct sums."""

import numpy as np
import pytest
from lazy_lab.measures import (
    bias_noise,
    effective_range,
    inhibition_of_return,
    inhibition_share,
)

SINGLE = [[distance, distance] for distance in range(128)]


def curve(near=1.0, dip=-0.5, own=-2.0, noise=0.02):
    """Returns a distance bias with the value `own` at distance 0, `near` at distance 1, `dip` at distances 2 to 10, and
    normally distributed noise at all distances."""
    bias = noise * np.random.default_rng(0).normal(size=128)
    bias[0], bias[1] = own, near
    bias[2:11] += dip
    return bias


def test_noise_is_the_standard_deviation_of_single_entries():
    assert bias_noise(curve(noise=0.1), SINGLE) == pytest.approx(0.1, rel=0.25)


def test_noise_does_not_depend_on_the_width_of_the_ranges():
    bias = 0.1 * np.random.default_rng(1).normal(size=4011)
    ranges = [[d, d] for d in range(11)] + [[d, d + 3] for d in range(11, 4011, 4)]
    means = [bias[first : last + 1].mean() for first, last in ranges]
    assert bias_noise(means, ranges) == pytest.approx(0.1, rel=0.1)


def test_inhibition_of_return_does_not_use_the_own_token():
    assert inhibition_of_return(curve(own=-5.0), SINGLE)
    assert inhibition_of_return(curve(own=5.0), SINGLE)
    # A large bias at distance 0 does not count as a large bias at distance 1.
    assert not inhibition_of_return(curve(near=-0.2, own=5.0), SINGLE)


def test_inhibition_of_return_needs_a_dip_below_the_noise_that_fades():
    assert not inhibition_of_return(curve(dip=0.0), SINGLE)
    lasting = curve()
    lasting[11:] -= 0.5
    assert not inhibition_of_return(lasting, SINGLE)


def test_mirrored_curves_are_the_control():
    curves = np.array([[curve(), curve()], [-curve(), curve(dip=0.0)]])
    assert (inhibition_share(curves, SINGLE), inhibition_share(-curves, SINGLE)) == (0.5, 0.25)


def test_inhibition_of_return_refuses_wide_ranges_near_the_query():
    with pytest.raises(ValueError, match="single distances"):
        inhibition_of_return(np.zeros(12), [[2 * d, 2 * d + 1] for d in range(12)])


def test_effective_range_is_where_zeroing_starts_to_cost():
    rest = np.random.default_rng(2).normal(size=(1, 50))
    cost = np.array([[0.3], [0.1], [0.02], [0.001], [0.0]])
    assert effective_range([0, 1, 4, 16, 127], rest + cost) == 16
    # If zeroing beyond a small distance costs nothing by chance, this distance is not the effective range, because
    # zeroing beyond a larger distance has a cost.
    cost[0] = 0
    assert effective_range([0, 1, 4, 16, 127], rest + cost) == 16
    assert effective_range([0, 1], rest + [[0.3], [0.0]]) == 1
