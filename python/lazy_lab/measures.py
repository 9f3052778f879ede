"""Measures of learned distance biases and of attention sinks, computed from recorded numbers.

A distance is the query's position minus the key's position: 0 is the own token, 1 the immediate neighbor."""

import numpy as np

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
    return float(
        1.4826 * np.median(np.abs(np.diff(means)) * scale)
    )  # the standard deviation of normal noise is 1.4826 times its median absolute deviation


def inhibition_of_return(bias, ranges):
    """Tests whether the bias curve of one head shows inhibition of return (Figure 4 of the Lazy Attention paper).

    bias, ranges: as in bias_noise. The window must have more than 10 distances, and distances up to 10 must be recorded
    separately. Returns a dict: `own` (distance 0, which the test does not use), `near` (distance 1), `dip` (minimum of
    2 to 10), `recovery` (mean of 11 to 100), `far` (mean beyond 100, or None), `noise`, and whether the pattern
    `holds`: the neighbor is raised, the following keys are suppressed, and the suppression fades with distance."""
    bias, (first, last) = np.asarray(bias, dtype=float), np.asarray(ranges).T
    if len(bias) < 12 or not np.array_equal(first[:11], last[:11]):
        raise ValueError(f"inhibition of return: expected single distances from 0 to 10 and more, found {ranges[:12]}")

    def mean(low, high):
        counts = np.minimum(last, high) - np.maximum(first, low) + 1
        used = counts > 0
        return float(np.average(bias[used], weights=counts[used])) if used.any() else None

    noise, near, dip = bias_noise(bias, ranges), float(bias[1]), float(bias[2:11].min())
    recovery, far = mean(11, 100), mean(101, int(last[-1]))
    holds = (
        near > 2 * noise
        and dip < -3 * noise  # the minimum of nine values of pure noise is below -3 noise in 1.2 % of heads
        and dip < recovery
        and abs(recovery) < abs(dip) / 2
        and (far is None or abs(far) < abs(dip) / 4)
    )
    own = float(bias[0])
    return {"own": own, "near": near, "dip": dip, "recovery": recovery, "far": far, "noise": noise, "holds": holds}


def inhibition_share(layers, ranges):
    """Returns two shares of heads: the share whose bias curve b shows inhibition of return, and as a control the share
    whose negated curve -b shows it. The pattern is only established if the first share exceeds the second.

    layers: bias curves [layer][head][range]."""
    curves = [np.asarray(curve, dtype=float) for heads in layers for curve in heads]
    return tuple(
        sum(inhibition_of_return(sign * curve, ranges)["holds"] for curve in curves) / len(curves) for sign in (1, -1)
    )


def effective_range(distances, losses, interval, margin=EQUAL_LOSSES):
    """Returns the effective range of a distance bias: the smallest distance R of the grid such that zeroing all entries
    beyond R, or beyond any larger distance of the grid, costs at most `margin` nats per token.

    distances: increasing grid; the last distance is so large that no entry is zeroed, so its loss is the unchanged
    model's. losses: [distance][text] in nats per token. interval: function that computes a confidence interval with the
    upper bound `high` from a list of values, such as statistics.student_interval."""
    losses = np.asarray(losses, dtype=float)
    found = distances[-1]
    for distance, costs in reversed(list(zip(distances[:-1], losses[:-1] - losses[-1]))):
        high = interval(costs).high
        if high is None or high > margin:
            break
        found = distance
    return found


def uniform_sink_ratio(tau, length, constant=False):
    """Returns the sink ratio that Elastic-Softmax has if all scores of a row are equal, for each offset in the array
    `tau`. The excess sink is measured relative to this value. The weight on the first of i keys is then
    max(0, 1 + tau) / i, or max(0, 1 / i + tau) for constant offsets. For softmax, sparsemax and entmax, pass tau = 0.
    `length` is in tokens."""
    visible = np.arange(1, length + 1)
    tau = np.asarray(tau, dtype=float)[..., None]
    return np.maximum(0, 1 / visible + (tau if constant else tau / visible)).mean(axis=-1)


def excess_sink(sink_ratio, tau, length, constant=False):
    """Returns the mean over layers and heads of the sink ratio minus the sink ratio of equal scores
    (uniform_sink_ratio) at the head's learned offset.

    sink_ratio, tau: arrays (layers, heads)."""
    return float(np.mean(np.asarray(sink_ratio, dtype=float) - uniform_sink_ratio(tau, length, constant)))
