"""Measures of learned distance biases, computed from recorded numbers.

A distance is the query's position minus the key's position: 0 is the own token, 1 the immediate neighbor."""

import numpy as np

from .statistics import student_interval

EQUAL_LOSSES = 0.005  # nats per token; the evidence protocol calls losses equal within this margin


def bias_noise(bias, ranges):
    """Returns the standard deviation of the entries of a bias curve if neighboring entries differ only by noise.

    bias: mean bias of each range of distances; ranges: [first, last] distance of each range, both inclusive. Only
    ranges that contain at most 4 distances and begin after distance 10 are used. At smaller distances the curve itself
    is steep, and the means of wider ranges also differ because the curve changes slowly with distance."""
    first, last = np.asarray(ranges).T
    widths = last - first + 1
    used = (first > 10) & (widths <= 4)
    widths, means = widths[used].astype(float), np.asarray(bias, dtype=float)[used]
    scale = np.sqrt(widths[1:] * widths[:-1] / (widths[1:] + widths[:-1]))
    # The standard deviation of normal noise is 1.4826 times its median absolute deviation.
    return float(1.4826 * np.median(np.abs(np.diff(means)) * scale))


def inhibition_of_return(bias, ranges):
    """Returns whether the bias curve of one head shows inhibition of return (Figure 4 of the Lazy Attention paper): the
    neighbor (distance 1) is raised, the following keys (2 to 10) are suppressed, and the suppression fades with
    distance. The own token (distance 0) is not used.

    bias, ranges: as in bias_noise. The window must have more than 10 distances, and distances up to 10 must be recorded
    separately."""
    bias, (first, last) = np.asarray(bias, dtype=float), np.asarray(ranges).T
    if len(bias) < 12 or not np.array_equal(first[:11], last[:11]):
        raise ValueError(f"inhibition of return: expected single distances from 0 to 10 and more, found {ranges[:12]}")

    def mean(low, high):
        """Returns the mean bias at the distances from `low` to `high`, or 0 beyond the window."""
        counts = np.maximum(np.minimum(last, high) - np.maximum(first, low) + 1, 0)
        return np.average(bias, weights=counts) if counts.any() else 0

    noise, near, dip = bias_noise(bias, ranges), bias[1], bias[2:11].min()
    recovery, far = mean(11, 100), mean(101, last[-1])
    # The minimum of nine values of pure noise is below -3 noise in 1.2 % of heads.
    suppressed = near > 2 * noise and dip < -3 * noise
    fades = dip < recovery and abs(recovery) < abs(dip) / 2 and abs(far) < abs(dip) / 4
    return bool(suppressed and fades)


def inhibition_share(layers, ranges):
    """Returns the share of heads whose bias curve shows inhibition of return. The pattern is only established if the
    share exceeds the share of the negated curves.

    layers: bias curves [layer][head][range]."""
    return float(np.mean([[inhibition_of_return(curve, ranges) for curve in heads] for heads in layers]))


def effective_range(found):
    """Returns the effective range of a distance bias: the smallest distance R of the grid such that zeroing all entries
    beyond R, or beyond any larger distance of the grid, costs at most EQUAL_LOSSES nats per token. The cost is the
    upper bound of the 95 % interval over texts.

    found: the result of `lazy measure bias_range`. found["distances"] is an increasing grid; its last distance is so
    large that no entry is zeroed. found["loss"]: [distance][text] in nats per token."""
    distances, losses = found["distances"], np.asarray(found["loss"], dtype=float)
    reach = distances[-1]
    for distance, costs in reversed(list(zip(distances[:-1], losses[:-1] - losses[-1]))):
        high = student_interval(costs).high
        if high is None or high > EQUAL_LOSSES:
            break
        reach = distance
    return reach
