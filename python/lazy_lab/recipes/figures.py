"""Figures 2 to 10 of the Lazy Attention paper (arXiv 2601.00919)."""

import numpy as np

from ..measures import effective_range, inhibition_share
from .common import LOSS, LOSS_AND_SINKS, SOFTMAX, SOFTMAX_BASE, line_chart
from .recipe import Column, Difference, Measurement, Model, Recipe, at_largest_length


def layers_of(values, first, last, of=24):
    """Returns a range of layers of `values`, which has one entry per layer. `first` and `last` number layers from 1 in
    the paper's model with `of` layers; the range covers the same fractions of the depth in this model."""
    low = 0 if first == 1 else min(len(values) - 1, round((first - 1) * len(values) / of))
    return values[low : max(low + 1, round(last * len(values) / of))]


def biases(found):
    """Converts a recorded distance bias to a pair of arrays: the mean bias (layers, heads, ranges) over each range of
    distances, and the ranges (ranges, 2), the first and the last distance of each range."""
    return np.array(found["bias"]), np.array(found["distances"])


def bias_size(first, last):
    """Returns a function that computes the mean |bias| over the layers `first` to `last`, all heads and all distances.
    See layers_of for the numbering of layers."""

    def size(found):
        curves, ranges = biases(found)
        widths = ranges[:, 1] - ranges[:, 0] + 1
        return np.average(np.abs(layers_of(curves, first, last)), axis=-1, weights=widths).mean()

    return size


def first_slope(found):
    """Returns the slope of a straight line fitted to the biases of the first layer (mean over heads) at distances up to
    100."""
    curves, ranges = biases(found)
    used = ranges[:, 1] <= 100
    return np.polyfit(ranges[used].mean(axis=1), curves[0][:, used].T, 1)[0].mean()


def inhibition(sign):
    """Returns a function that computes the share of heads in layers 11 to 24 whose distance bias, multiplied by `sign`,
    shows inhibition of return."""
    return lambda found: inhibition_share(sign * layers_of(np.array(found["bias"]), 11, 24), found["distances"])


def alibi_change(slopes):
    """Returns the mean relative change of the trained ALiBi slopes (layers, heads) from their initial values, which are
    2^(-8 h / heads) for the heads h = 1, 2, ..."""
    slopes = np.array(slopes)
    start = 2.0 ** (-8 * np.arange(1, slopes.shape[1] + 1) / slopes.shape[1])
    return np.abs(slopes / start - 1).mean()


def offset_column(title, first, last, size):
    """Returns the column of the mean of size(tau) over the layers `first` to `last` (see layers_of)."""
    title = f"{title} of layers {first} to {last}"
    return Column(title, "model/learned/tau", reduce=lambda tau: np.mean(size(layers_of(tau, first, last))))


def rise(scale, factor):
    """Returns the column of the loss at `factor` times the training length minus the loss at the training length."""
    loss = "model/lengths/bos_every_window/{}/loss"
    title = f"rise to {factor} x the training length, nats"
    return Column(title, loss.format(factor * scale.context), minus=loss.format(scale.context))


BIAS, COLLAPSE = "model/learned/distance_bias", "model/collapse_by_length"
BIAS_COLUMNS = [
    LOSS,
    Column("mean absolute bias", BIAS, reduce=bias_size(1, 24)),
    Column("effective range, tokens", "bias_range", 1, 0, effective_range),
    Column("heads with inhibition of return above layer 10, %", BIAS, 100, 1, inhibition(1)),
    Column("the same for mirrored curves (control), %", BIAS, 100, 1, inhibition(-1)),
]
RANGE_NOTE = "Effective range: the smallest distance beyond which zeroing the bias costs at most 0.005 nats per token."
LAYER_NOTE = "Layers are numbered as in the paper's models of 24 layers, at the same fractions of the depth."
RESIDUAL = Column("variance of hidden states, first / others - 1", "spread/residual")
REPETITION = [
    Column("first position, natural text after BOS, %", "repetition/natural_bos/sink", 100, 1),
    Column("first position, natural text without BOS, %", "repetition/natural/sink", 100, 1),
    Column("first position, one repeated token, %", "repetition/repeated/sink", 100, 1),
    Column("uniform rows, %", "repetition/uniform", 100, 1),
]


def draw_biases(results):
    """Draws the distance bias (mean over heads) by distance for the first, the middle and the last layer of the
    recipe's first model."""
    found = results.read(results.models[0], BIAS, biases)
    if not found:
        return None
    curves, x = np.mean([curves.mean(axis=1) for curves, _ in found], axis=0), found[0][1].mean(axis=1)
    layers = (0, len(curves) // 2, len(curves) - 1)
    return line_chart([(f"layer {n + 1}", x, curves[n]) for n in layers], "distance, tokens", "mean bias over heads")


def draw_offsets(results):
    """Draws the offset tau of every head of the Lazy model by layer."""
    found = results.read("lazy", "model/learned/tau")  # [seed][layer][head]
    by_head = np.mean(found, axis=0).T if found else []
    series = [(f"head {head}", range(1, len(tau) + 1), tau) for head, tau in enumerate(by_head, 1)]
    return line_chart(series, "layer", "offset tau")


def draw_lengths(results):
    series = []
    for name in results.models:
        found = results.read(name, "model/lengths/bos_every_window")
        lengths = sorted(found[0], key=int) if found else []
        losses = [np.mean([by_length[length]["loss"] for by_length in found]) for length in lengths]
        series.append((name, list(map(int, lengths)), losses))
    return line_chart(series, "sequence length, tokens", "loss, nats per token", lengths=True)


def draw_mask(results):
    found = [masks[0] for name in results.models if (masks := results.read(name, "mask"))]
    x = [mask["position"] for mask in found]
    named = (("BOS at position k", "masked"), ("first position", "first"))
    series = [(label, x, [100 * np.mean(mask[key]) for mask in found]) for label, key in named]
    return line_chart(series, "position k of BOS", "weight, %", lengths=True)


def bias_models(scale):
    """Returns the models of Figure 9: softmax models with a distance bias. Their context is 1024 at paper scale."""
    context, own = scale.context, {}
    if scale.name == "paper":
        context = 1024
        own = {"training.seq_len": 1024, "model.max_position_embeddings": 1024, "training.batch_size": 32}
    window, alibi = "model.distance_bias_window", {"model.rope_theta": 0, "model.positions": "alibi"}
    return [
        Model("bias-alone", own | {window: context, "model.rope_theta": 0}),
        Model("rope-bias", own | {window: context // 2}),
        Model("alibi-bias", own | {window: context // 2} | alibi),
        Model("alibi-trained", own | alibi | {"model.alibi_trainable": True}),
    ]


def recipes(scale):
    rise_to_4 = rise(scale, 4)
    bias_measurements = [
        scale.measure("heldout", "learned"),
        Measurement("bias_range", {"length": scale.context}, ("lazy", "bias-alone", "rope-bias", "alibi-bias")),
    ]
    mask_positions = (1, 2, 5, 9, 17, 33, 65)
    mask_files = {"small": ("repro-mask.toml",), "paper": ("repro-mask-60m.toml",)}.get(scale.name, ())
    return [
        Recipe(
            "fig2",
            "variance of hidden states and values by position, full attention and a sliding window",
            "paper, Figure 2",
            [SOFTMAX, Model("softmax-window", {"model.window_size": scale.context // 16})],
            [Measurement("spread")],
            [
                RESIDUAL,
                Column("variance of values, first / others - 1", "spread/values"),
                Column("weight on the first position, %", "spread/sink", 100, 1),
            ],
            [Difference("Is it larger with full attention?", RESIDUAL, "softmax", "softmax-window", True)],
            ["The sliding window is a sixteenth of the context; the paper does not state its window."],
        ),
        Recipe(
            "fig2a",
            "attention sink if BOS always has position k (Mask@k)",
            "paper, Figure 2a and section 3.1",
            [
                Model(f"mask-at-{k}", {"data.bos_per_sequence": False, "data.mask_position": k}, files=mask_files)
                for k in mask_positions
            ],
            [Measurement("mask", {"position": k}, (f"mask-at-{k}",)) for k in mask_positions],
            [
                Column("weight on BOS at position k, %", "mask/masked", 100, 2),
                Column("weight on the first position, %", "mask/first", 100, 2),
                Column("uniform rows, %", "mask/even", 100, 2),
                Column("heads with a sink at position k, %", "mask/sink_masked", 100, 1),
                Column("heads with a sink at position 1, %", "mask/sink_first", 100, 1),
            ],
            notes=["One model is trained for each k. BOS occurs only at position k."],
            draw=draw_mask,
        ),
        Recipe(
            "fig3",
            "attention to the first position on natural text and on one repeated token, given models",
            "paper, Figure 3",
            measurements=[Measurement("repetition", given=True, reads="text")],
            columns=REPETITION,
        ),
        Recipe(
            "fig4",
            "learned distance biases by layer; inhibition of return",
            "paper, Figure 4 and section 5.3",
            [scale.lazy()],
            bias_measurements,
            [
                *BIAS_COLUMNS,
                Column("slope of the first layer up to distance 100", BIAS, 1, 5, first_slope),
                Column("mean absolute bias of the first layer", BIAS, reduce=bias_size(1, 1)),
                Column("mean absolute bias of layers 2 to 10", BIAS, reduce=bias_size(2, 10)),
                Column("mean absolute bias above layer 10", BIAS, reduce=bias_size(11, 24)),
            ],
            notes=[LAYER_NOTE, RANGE_NOTE],
            draw=draw_biases,
        ),
        *(
            Recipe(
                name,
                "offsets of Elastic-Softmax by layer and head",
                source,
                [scale.lazy()],
                [scale.measure("heldout", "sinks", "learned")],
                [*LOSS_AND_SINKS, *(offset_column(title, *layers, size) for layers in ranges)],
                notes=[LAYER_NOTE],
                draw=draw_offsets,
            )
            for name, source, title, size, ranges in (
                ("fig5", "paper, Figure 5 and section 5.4", "tau", np.array, ((1, 1), (2, 17), (18, 24))),
                ("fig10", "paper, Figure 10 and appendix E", "mean absolute tau", np.abs, ((1, 8), (9, 16), (17, 24))),
            )
        ),
        Recipe(
            "fig6",
            "loss beyond the training length",
            "paper, Figure 6 and section 5.5",
            [
                scale.lazy(),
                scale.lazy("lazy-base10k", {"model.rope_theta": 10000}),
                SOFTMAX,
                SOFTMAX_BASE,
                scale.lazy("no-positional", {"model.distance_bias_window": 0, "model.rope_theta": 10000}),
                scale.lazy("no-elastic", {"model.normalizer": "softmax"}),
            ],
            [scale.measure_lengths(1, 2, 4)],
            [
                LOSS,
                rise(scale, 2),
                rise_to_4,
                Column("cosine of hidden states at the largest length", COLLAPSE, reduce=at_largest_length("cosine")),
                Column("effective rank at the largest length", COLLAPSE, 1, 1, at_largest_length("effective_rank")),
            ],
            [
                Difference("Does the loss of Lazy rise less?", rise_to_4, "lazy", "softmax", True),
                Difference("The same at RoPE base 1.5e5", rise_to_4, "lazy", "softmax-base150k", True),
                Difference("The same at RoPE base 1e4", rise_to_4, "lazy-base10k", "softmax"),
            ],
            ["The loss is measured on the same tokens at every context length. The published figure has no numbers."],
            draw_lengths,
        ),
        Recipe(
            "fig7",
            "attention to the first position on natural text and on one repeated token, trained models",
            "paper, Figure 7 and section 5.2",
            [scale.lazy(), SOFTMAX_BASE],
            [Measurement("repetition")],
            REPETITION,
            [Difference(f"{column.title}: is it less?", column, "lazy", "softmax-base150k") for column in REPETITION],
        ),
        Recipe(
            "fig8",
            "distance biases without RoPE",
            "paper, Figure 8 and appendix D",
            bias_models(scale)[:1],
            bias_measurements,
            BIAS_COLUMNS,
            notes=[RANGE_NOTE],
            draw=draw_biases,
        ),
        Recipe(
            "fig9",
            "distance biases with RoPE and with ALiBi; change of the ALiBi slopes",
            "paper, Figure 9 and appendix D",
            bias_models(scale),
            bias_measurements,
            [
                *BIAS_COLUMNS,
                Column("relative change of the ALiBi slopes", "model/learned/alibi_slopes", reduce=alibi_change),
            ],
            notes=[RANGE_NOTE],
            draw=draw_biases,
        ),
    ]
