"""Figures 2 to 10 of the Lazy Attention paper (arXiv 2601.00919)."""

import numpy as np

from ..measures import effective_range, inhibition_share
from ..statistics import student_interval
from . import (
    SOFTMAX,
    SOFTMAX_BASE,
    Column,
    Difference,
    Measurement,
    Model,
    Recipe,
    lazy_model,
    line_chart,
    loss_column,
    model_measurement,
    sink_columns,
)


def layers_of(values, first, last, of=24):
    """Returns a range of layers of `values`, which has one entry per layer. `first` and `last` number layers from 1 in
    the paper's model with `of` layers; the range covers the same fractions of the depth in this model."""
    low = 0 if first == 1 else min(len(values) - 1, round((first - 1) * len(values) / of))
    return values[low : max(low + 1, round(last * len(values) / of))]


def biases(measured):
    """Returns the learned distance bias as a pair: the mean bias [layer][head][range] over each range of distances, and
    the list of the ranges as [first, last] distance."""
    bias = measured["model"]["learned"]["distance_bias"]
    return np.array(bias["bias"]), np.array(bias["distances"])


def bias_size(first, last):
    """Returns a function that computes the mean |bias| over the layers `first` to `last`, all heads and all distances.
    See layers_of for the numbering of layers."""

    def value(measured):
        curves, ranges = biases(measured)
        widths = ranges[:, 1] - ranges[:, 0] + 1
        return float(np.average(np.abs(layers_of(curves, first, last)), axis=-1, weights=widths).mean())

    return value


def first_slope(measured):
    """Returns the slope of a straight line fitted to the biases of the first layer (mean over heads) at distances up to
    100."""
    curves, ranges = biases(measured)
    used = ranges[:, 1] <= 100
    return float(np.polyfit(ranges[used].mean(axis=1), curves[0][:, used].T, 1)[0].mean())


def inhibition(index):
    """Returns a function that computes the share of heads in layers 11 to 24 whose distance bias shows inhibition of
    return (index 0) or, as a control, the pattern with the opposite sign (index 1)."""

    def value(measured):
        curves, ranges = biases(measured)
        return inhibition_share(layers_of(curves, 11, 24), ranges.tolist())[index]

    return value


def offsets(first, last, of=np.mean):
    return lambda measured: float(of(np.array(layers_of(measured["model"]["learned"]["tau"], first, last))))


def bias_reach(measured):
    """Returns the effective range of the distance bias: zeroing the bias beyond it hardly increases the loss."""
    found = measured["bias_range"]
    return effective_range(found["distances"], found["loss"], student_interval)


BIAS_COLUMNS = [
    loss_column(),
    Column("mean absolute bias", bias_size(1, 24)),
    Column("effective range, tokens", bias_reach, digits=0),
    Column("heads with inhibition of return above layer 10, %", inhibition(0), 100, 1),
    Column("the same for mirrored curves (control), %", inhibition(1), 100, 1),
]
RANGE_NOTE = "Effective range: the smallest distance beyond which zeroing the bias costs at most 0.005 nats per token."
LAYER_NOTE = "Layers are numbered as in the paper's models of 24 layers, at the same fractions of the depth."


def alibi_change(measured):
    """Returns the mean relative change of the trained ALiBi slopes from their initial values, which are
    2^(-8 h / heads) for the heads h = 1, 2, ..."""
    slopes = np.array(measured["model"]["learned"]["alibi_slopes"])  # (layers, heads)
    start = 2.0 ** (-8 * np.arange(1, slopes.shape[1] + 1) / slopes.shape[1])
    return float(np.abs(slopes / start - 1).mean())


def draw_biases(results):
    """Draws the distance bias (mean over heads) by distance for the first, the middle and the last layer of the
    recipe's first model."""
    found = [biases(values) for values in results.values(results.models[0]) if "model" in values]
    if not found:
        return None
    curves, x = np.mean([curves.mean(axis=1) for curves, _ in found], axis=0), found[0][1].mean(axis=1)
    layers = (0, len(curves) // 2, len(curves) - 1)
    return line_chart([(f"layer {n + 1}", x, curves[n]) for n in layers], "distance, tokens", "mean bias over heads")


def draw_offsets(results):
    """Draws the offset tau of every head of the Lazy model by layer."""
    found = [np.array(values["model"]["learned"]["tau"]) for values in results.values("lazy") if "model" in values]
    if not found:
        return None
    tau = np.mean(found, axis=0)  # (layers, heads)
    layers = np.arange(1, len(tau) + 1)
    series = [(f"head {head + 1}", layers, tau[:, head]) for head in range(tau.shape[1])]
    return line_chart(series, "layer", "offset tau")


def draw_lengths(results):
    series = []
    for name in results.models:
        found = [values["model"]["lengths"]["bos_every_window"] for values in results.values(name) if "model" in values]
        lengths = sorted(map(int, found[0])) if found else []
        series.append((name, lengths, [np.mean([f[str(length)]["loss"] for f in found]) for length in lengths]))
    return line_chart(series, "sequence length, tokens", "loss, nats per token", lengths=True)


def draw_mask(results):
    found = [values[0]["mask"] for name in results.models if (values := results.values(name))]
    x = [mask["position"] for mask in found]
    named = (("BOS at position k", "masked"), ("first position", "first"))
    series = [(label, x, [100 * np.mean(mask[key]) for mask in found]) for label, key in named]
    return line_chart(series, "position k of BOS", "weight, %", lengths=True)


MASK_POSITIONS = (1, 2, 5, 9, 17, 33, 65)


def mask_models(scale):
    files = {"small": ("repro-mask.toml",), "paper": ("repro-mask-60m.toml",)}.get(scale.name, ())
    own = {"data.bos_per_sequence": False}
    return [Model(f"mask-at-{k}", own | {"data.mask_position": k}, files=files) for k in MASK_POSITIONS]


def mask_measurements(scale):
    return [Measurement("mask", {"position": k}, (f"mask-at-{k}",)) for k in MASK_POSITIONS]


def length_models(scale):
    return [
        lazy_model(scale),
        lazy_model(scale, "lazy-base10k", model__rope_theta=10000),
        SOFTMAX,
        SOFTMAX_BASE,
        lazy_model(scale, "no-positional", model__distance_bias_window=0, model__rope_theta=10000),
        lazy_model(scale, "no-elastic", model__normalizer="softmax"),
    ]


def rise(factor):
    """Returns a function that computes the rise of the loss with length: the loss at `factor` times the training length
    minus the loss at the training length."""

    def value(measured):
        lengths = measured["model"]["lengths"]["bos_every_window"]
        first = min(map(int, lengths))
        return lengths[str(first * factor)]["loss"] - lengths[str(first)]["loss"]

    return value


RISE = Column("rise to 4 x the training length, nats", rise(4))


def collapse(key):
    def value(measured):
        by_length = measured["model"]["collapse_by_length"]
        return by_length[max(by_length, key=int)][key]

    return value


def with_lengths(scale, *factors):
    lengths = [factor * scale.context for factor in factors]
    parts = ["heldout", "lengths", "collapse_by_length"]
    return Measurement("model", scale.settings | {"lengths": lengths, "parts": parts})


def figure9_models(scale):
    """Returns the models of Figure 9: softmax models with a distance bias. Their context is 1024 at paper scale."""
    context, own = scale.context, {}
    if scale.name == "paper":
        context = 1024
        own = {"training.seq_len": 1024, "model.max_position_embeddings": 1024, "training.batch_size": 32}
    rope, alibi = "model.rope_theta", {"model.rope_theta": 0, "model.positions": "alibi"}
    return [
        Model("bias-alone", own | {"model.distance_bias_window": context, rope: 0}),
        Model("rope-bias", own | {"model.distance_bias_window": context // 2}),
        Model("alibi-bias", own | {"model.distance_bias_window": context // 2} | alibi),
        Model("alibi-trained", own | alibi | {"model.alibi_trainable": True}),
    ]


def bias_measurements(scale):
    models = ("lazy", "bias-alone", "rope-bias", "alibi-bias")
    return [
        model_measurement(scale, "heldout", "learned"),
        Measurement("bias_range", {"length": scale.context}, models, reads="corpus"),
    ]


REPETITION = {
    "first position, natural text after BOS, %": "repetition natural_bos sink",
    "first position, natural text without BOS, %": "repetition natural sink",
    "first position, one repeated token, %": "repetition repeated sink",
    "uniform rows, %": "repetition uniform",
}


def repetition_columns(scale):
    return [Column(title, path, 100, 1) for title, path in REPETITION.items()]


FIRST_VARIANCE = "variance of hidden states, first / others - 1"
RECIPES = [
    Recipe(
        "fig2",
        "variance of hidden states and values by position, full attention and a sliding window",
        "paper, Figure 2",
        lambda scale: [SOFTMAX, Model("softmax-window", {"model.window_size": scale.context // 16})],
        lambda scale: [Measurement("spread")],
        lambda scale: [
            Column(FIRST_VARIANCE, "spread residual"),
            Column("variance of values, first / others - 1", "spread values"),
            Column("weight on the first position, %", "spread sink", 100, 1),
        ],
        (Difference("Is it larger with full attention?", FIRST_VARIANCE, "softmax", "softmax-window", True),),
        ("The sliding window is a sixteenth of the context; the paper does not state its window.",),
    ),
    Recipe(
        "fig2a",
        "attention sink if BOS always has position k (Mask@k)",
        "paper, Figure 2a and section 3.1",
        mask_models,
        mask_measurements,
        lambda scale: [
            Column("weight on BOS at position k, %", "mask masked", 100, 2),
            Column("weight on the first position, %", "mask first", 100, 2),
            Column("uniform rows, %", "mask even", 100, 2),
            Column("heads with a sink at position k, %", "mask sink_masked", 100, 1),
            Column("heads with a sink at position 1, %", "mask sink_first", 100, 1),
        ],
        notes=("One model is trained for each k. BOS occurs only at position k.",),
        draw=draw_mask,
    ),
    Recipe(
        "fig3",
        "attention to the first position on natural text and on one repeated token, given models",
        "paper, Figure 3",
        measurements=lambda scale: [Measurement("repetition", given=True, reads="text")],
        columns=repetition_columns,
    ),
    Recipe(
        "fig4",
        "learned distance biases by layer; inhibition of return",
        "paper, Figure 4 and section 5.3",
        lambda scale: [lazy_model(scale)],
        bias_measurements,
        lambda scale: [
            *BIAS_COLUMNS,
            Column("slope of the first layer up to distance 100", first_slope, 1, 5),
            Column("mean absolute bias of the first layer", bias_size(1, 1)),
            Column("mean absolute bias of layers 2 to 10", bias_size(2, 10)),
            Column("mean absolute bias above layer 10", bias_size(11, 24)),
        ],
        notes=(LAYER_NOTE, RANGE_NOTE),
        draw=draw_biases,
    ),
    *(
        Recipe(
            name,
            "offsets of Elastic-Softmax by layer and head",
            source,
            lambda scale: [lazy_model(scale)],
            lambda scale: [model_measurement(scale, "heldout", "sinks", "learned")],
            lambda scale, columns=columns: [loss_column(), *sink_columns(), *columns],
            notes=(LAYER_NOTE,),
            draw=draw_offsets,
        )
        for name, source, columns in (
            (
                "fig5",
                "paper, Figure 5 and section 5.4",
                [Column(f"tau of layers {a} to {b}", offsets(a, b)) for a, b in ((1, 1), (2, 17), (18, 24))],
            ),
            (
                "fig10",
                "paper, Figure 10 and appendix E",
                [
                    Column(f"mean absolute tau of layers {a} to {b}", offsets(a, b, lambda tau: np.abs(tau).mean()))
                    for a, b in ((1, 8), (9, 16), (17, 24))
                ],
            ),
        )
    ),
    Recipe(
        "fig6",
        "loss beyond the training length",
        "paper, Figure 6 and section 5.5",
        length_models,
        lambda scale: [with_lengths(scale, 1, 2, 4)],
        lambda scale: [
            loss_column(),
            Column("rise to 2 x the training length, nats", rise(2)),
            RISE,
            Column("cosine of hidden states at the largest length", collapse("cosine")),
            Column("effective rank at the largest length", collapse("effective_rank"), 1, 1),
        ],
        (
            Difference("Does the loss of Lazy rise less?", RISE.title, "lazy", "softmax", True),
            Difference("The same at RoPE base 1.5e5", RISE.title, "lazy", "softmax-base150k", True),
            Difference("The same at RoPE base 1e4", RISE.title, "lazy-base10k", "softmax"),
        ),
        ("All lengths predict the same tokens. The published figure has no numbers.",),
        draw_lengths,
    ),
    Recipe(
        "fig7",
        "attention to the first position on natural text and on one repeated token, trained models",
        "paper, Figure 7 and section 5.2",
        lambda scale: [lazy_model(scale), SOFTMAX_BASE],
        lambda scale: [Measurement("repetition")],
        repetition_columns,
        tuple(Difference(f"{title}: is it less?", title, "lazy", "softmax-base150k") for title in REPETITION),
    ),
    Recipe(
        "fig8",
        "distance biases without RoPE",
        "paper, Figure 8 and appendix D",
        lambda scale: figure9_models(scale)[:1],
        bias_measurements,
        lambda scale: BIAS_COLUMNS,
        notes=(RANGE_NOTE,),
        draw=draw_biases,
    ),
    Recipe(
        "fig9",
        "distance biases with RoPE and with ALiBi; change of the ALiBi slopes",
        "paper, Figure 9 and appendix D",
        figure9_models,
        bias_measurements,
        lambda scale: [*BIAS_COLUMNS, Column("relative change of the ALiBi slopes", alibi_change)],
        notes=(RANGE_NOTE,),
        draw=draw_biases,
    ),
]
