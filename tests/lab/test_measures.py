"""Tests of the measures of distance biases. The inputs are curves with known properties."""

import numpy as np
import pytest
from lazy_lab.measures import bias_noise, effective_range, inhibition_of_return, inhibition_share

SINGLE = [[distance, distance] for distance in range(128)]


def curve(near=1.0, dip=-0.5, own=-2.0, rest=0.0, noise=0.02):
    """Returns a distance bias with the value `own` at distance 0, `near` at distance 1, `dip` at distances 2 to 10, and
    `rest` beyond. Normally distributed noise is added at all distances but the first two."""
    bias = noise * np.random.default_rng(0).normal(size=128)
    bias[0], bias[1] = own, near
    bias[2:11] += dip
    bias[11:] += rest
    return bias


def test_noise_is_the_standard_deviation_of_single_entries():
    assert bias_noise(curve(noise=0.1), SINGLE) == pytest.approx(0.1, rel=0.25)


def test_noise_does_not_depend_on_the_width_of_the_ranges():
    bias = 0.1 * np.random.default_rng(1).normal(size=4011)
    ranges = [[d, d] for d in range(11)] + [[d, d + 3] for d in range(11, 4011, 4)]
    means = [bias[first : last + 1].mean() for first, last in ranges]
    assert bias_noise(means, ranges) == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize(
    ("changes", "holds"),
    [
        ({"own": -5.0}, True),  # the own token is not used
        ({"own": 5.0}, True),
        ({"own": 5.0, "near": -0.2}, False),  # the neighbor is not raised
        ({"dip": 0.0}, False),  # no dip below the noise
        ({"rest": -0.5}, False),  # the suppression does not fade
    ],
)
def test_inhibition_of_return(changes, holds):
    assert inhibition_of_return(curve(**changes), SINGLE) == holds


def test_mirrored_curves_are_the_control():
    curves = np.array([[curve(), curve()], [-curve(), curve(dip=0.0)]])
    assert (inhibition_share(curves, SINGLE), inhibition_share(-curves, SINGLE)) == (0.5, 0.25)


def test_inhibition_of_return_refuses_wide_ranges_near_the_query():
    with pytest.raises(ValueError, match="single distances"):
        inhibition_of_return(np.zeros(12), [[2 * d, 2 * d + 1] for d in range(12)])


def test_effective_range_is_where_zeroing_starts_to_cost():
    rest = np.random.default_rng(2).normal(size=(1, 50))
    cost = np.array([[0.3], [0.1], [0.02], [0.001], [0.0]])
    assert effective_range({"distances": [0, 1, 4, 16, 127], "loss": rest + cost}) == 16
    # If zeroing beyond a small distance costs nothing by chance, this distance is not the effective range, because
    # zeroing beyond a larger distance has a cost.
    cost[0] = 0
    assert effective_range({"distances": [0, 1, 4, 16, 127], "loss": rest + cost}) == 16
    assert effective_range({"distances": [0, 1], "loss": rest + [[0.3], [0.0]]}) == 1
