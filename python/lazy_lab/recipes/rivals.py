"""Recipe that compares Lazy Attention with other mechanisms against attention sinks, all trained by the same program:
gated attention (arXiv 2505.06708), off-by-one softmax, Softpick (arXiv 2504.20966) and learned sinks (gpt-oss)."""

import numpy as np

from .. import charts
from . import (
    ELASTIC,
    SOFTMAX,
    Column,
    Difference,
    Measurement,
    Model,
    Recipe,
    lazy_model,
    loss_column,
    model_measurement,
    sink_columns,
    sinks_of,
)

RIVALS = [
    Model("gated", {"model.attention_gate": "head"}),
    Model("off-by-one", {"model.normalizer": "softmax_sink", "model.sink_trainable": False}),
    Model("softpick", {"model.normalizer": "softpick"}),
    Model("learned-sink", {"model.normalizer": "softmax_sink"}),
]
NAMES = ("elastic", "lazy", *(model.name for model in RIVALS))
FORMATS = ["w8a8", "w8a8:tensor", "w4a4", "kv8", "kv4", "kv4:channel"]


def all_models(scale):
    return [SOFTMAX, ELASTIC, lazy_model(scale), *RIVALS]


def outliers(scale):
    return Measurement("outliers", {"texts": 16, "length": 512})


def quantization(scale):
    return Measurement("quantization", {"texts": 32, "length": 512, "formats": FORMATS})


def cache(scale):
    """Returns the measurement of the loss with shortened KV caches. The texts have twice the training length, and only
    the tokens after the training length are counted. There are three kinds of caches, each with the sizes 1/8, 1/4 and
    1/2 of the training length."""
    context = scale.context
    caches = []
    for size in (context // 8, context // 4, context // 2):
        caches += [f"streaming:0+{size}", f"streaming:4+{size - 4}", f"heaviest:{size // 2}+{size // 2}"]
    settings = {"texts": 8, "length": 2 * context, "counted_from": context, "read_texts": 2, "decoded": 8}
    return Measurement("cache", settings | {"read_at": [context // 8 * 2**n for n in range(5)], "caches": caches})


def speed(scale):
    sizes = {"tiny": (3, 1, "fp32", 1024)}.get(scale.name, (9, 8, "bf16", 32768))
    settings = dict(zip(("rounds", "batch", "dtype", "train_tokens"), sizes))
    settings |= {"lengths": [scale.context, 4 * scale.context], "texts": 2, "decoded": 16}
    return Measurement("speed", settings, baselines=("softmax",))


def added(kind, group, name):
    """Returns a function that computes how much a low-bit format or a shortened KV cache increases the loss: the loss
    with it minus the loss without it, as a mean over texts."""

    def value(measured):
        found = measured[kind][group][name]
        return float(np.mean(found["loss"] if isinstance(found, dict) else found) - np.mean(measured[kind]["full"]))

    return value


def relative_time(what, factor, scale):
    """Returns a function that computes the time of a model divided by the time of the softmax model. The two models
    were timed alternately."""

    def value(measured):
        found = measured["speed"]
        length = str(factor * scale.context)
        return found["as trained"][length][what]["median"] / found["softmax"][length][what]["median"]

    return value


def outlier_columns(scale):
    return [
        Column("kurtosis of the residual stream", "outliers places residual kurtosis", 1, 1),
        Column("kurtosis of the MLP's last input", "outliers places mlp.inner kurtosis", 1, 1),
        Column("largest / median of the residual stream", "outliers places residual ratio", 1, 1),
    ]


def quantization_columns(scale, formats=FORMATS):
    return [Column(f"loss added by {name}", added("quantization", "formats", name), 1, 4) for name in formats]


def cache_columns(scale):
    return [Column(f"loss added by {name}", added("cache", "caches", name)) for name in cache(scale).settings["caches"]]


def speed_columns(scale):
    return [
        Column("time of a training step / softmax", relative_time("train_ms", 1, scale), 1, 2),
        Column("time of a decode step / softmax", relative_time("decode_ms", 4, scale), 1, 2),
    ]


def rivals_columns(scale):
    return [
        loss_column(),
        *sink_columns(),
        Column("Sink_1^0.3, % of heads", sinks_of("sink_1"), 100, 1),
        *outlier_columns(scale)[:1],
        *quantization_columns(scale, ["w4a4", "kv4"]),
        *(
            column
            for column in cache_columns(scale)
            if column.title.endswith(f"heaviest:{scale.context // 8}+{scale.context // 8}")
        ),
        *speed_columns(scale),
    ]


def draw_rivals(results):
    """Draws the held-out loss against the excess sink of every model, with one point per seed."""
    figure, axes = charts.figure()
    for index, name in enumerate(results.models):
        points = [
            (100 * sinks_of("excess_at_offsets")(values), values["model"]["heldout"]["loss"])
            for values in results.values(name)
            if "model" in values
        ]
        if points:
            color = charts.color(charts.series_role(index))
            axes.plot(*zip(*points), ls="", marker=charts.marker(index), color=color, label=name)
    axes.set_xlabel("excess sink, percentage points")
    axes.set_ylabel("held-out loss, nats per token")
    axes.legend(ncols=2)
    return figure if axes.lines else None


def each(question, column):
    return tuple(Difference(question.format(name), column, name, "softmax", True) for name in NAMES)


RECIPES = [
    Recipe(
        "rivals",
        "other mechanisms against attention sinks",
        "further check: arXiv 2505.06708, 2504.20966, gpt-oss, off-by-one softmax",
        all_models,
        lambda scale: [
            model_measurement(scale, "heldout", "sinks"),
            outliers(scale),
            quantization(scale),
            cache(scale),
            speed(scale),
        ],
        rivals_columns,
        each("Is the loss of {} below the loss of softmax?", "held-out loss")
        + each("Is the sink of {} smaller?", "excess sink, points"),
        ("All models have the same number of parameters, except for the gates.",),
        draw_rivals,
    ),
    *(
        Recipe(name, title, "further check", all_models, lambda scale, of=of: [of(scale)], columns, questions, notes)
        for name, title, of, columns, questions, notes in (
            (
                "outliers",
                "activation outliers of models with and without sinks",
                outliers,
                outlier_columns,
                each("Is the kurtosis of {} smaller?", "kurtosis of the residual stream"),
                ("The first position is excluded from the kurtosis.",),
            ),
            (
                "quantization",
                "loss added by low-bit formats",
                quantization,
                quantization_columns,
                each("Does w4a4 cost {} less?", "loss added by w4a4"),
                (),
            ),
            (
                "cache",
                "loss added by small caches",
                cache,
                cache_columns,
                (),
                ("Texts have twice the training length; only tokens beyond the training length count.",),
            ),
            (
                "speed",
                "time of training and decoding compared with softmax",
                speed,
                speed_columns,
                (),
                ("The machine must be idle otherwise. Softmax compared with itself shows the noise.",),
            ),
        )
    ),
]
