"""Draws the six pictures of the page docs/results/README.md."""

import numpy as np

from .. import charts
from . import data, pictures

LAYERS = range(1, 13)


def head_start(folder):
    """Draws the difference of the validation loss between Lazy and softmax during training."""
    figure, axes = charts.figure(720, 330)
    losses = lambda models, seed: [
        data.at(data.trainings()[model][seed], "training/validation/loss") for model in models
    ]
    for models, baselines, label, role in (
        (data.ELASTIC, data.SOFTMAX, "Elastic-Softmax - softmax, trained on 200M tokens", "s0"),
        (data.LONG[:1], data.LONG[1:], "Lazy - softmax, trained on 600M tokens", "s3"),
    ):
        lists = [
            np.mean(losses(models, k), axis=0) - np.mean(losses(baselines, k), axis=0)
            for k in data.trainings()[models[0]]
        ]
        tokens = np.array(data.at(data.trainings()[models[0]][1], "training/validation/tokens")) / 1e6
        pictures.curves(axes, tokens, lists, label, role)
    pictures.zero_line(axes, vertical=False)
    axes.set(xlabel="training tokens, millions", ylabel="difference, nats per token", ylim=(-0.5, 0.1))
    axes.legend(loc="lower right")
    charts.save_svg(figure, folder / "head-start.svg", "Difference of the validation loss over training")


def other_text(folder):
    """Draws the confidence intervals of the differences on other texts, for models trained on 200M and 600M tokens."""
    figure, axes = charts.figure(720, 330, ncols=2, width_ratios=(2, 1))
    for axis, chosen, label in (
        (axes[0], data.OTHER_TEXT[:5], "loss, nats per token"),
        (axes[1], data.OTHER_TEXT[5:], "accuracy, points"),
    ):
        rows = []
        for measure in chosen:
            title = measure.title.split(", ")[0].replace(" without", "\nwithout")
            rows += [(title, measure.effect(data.ELASTIC, data.SOFTMAX), "s0"), ("", measure.effect(*data.LONG), "s3")]
        pictures.intervals(axis, rows, label, chosen[0].scale)
        pictures.zero_line(axis)
    axes[0].set_xlim(-0.62, 0.22)
    for role, label in (("s0", "200M tokens, 3 seeds"), ("s3", "600M tokens, 2 seeds")):
        axes[0].plot([], [], "o-", color=charts.color(role), label=label)
    pictures.legend_above(figure, axes[0], 2)
    charts.save_svg(figure, folder / "other-text.svg", "Differences on WikiText and LAMBADA")


def sink(folder):
    """Draws the weight on the first key by layer, and the excess sink during training."""
    figure, axes = charts.figure(720, 330, ncols=2)
    for label, models, long, role in (
        ("softmax", data.SOFTMAX, "E.softmax", "s1"),
        ("Elastic-Softmax", data.ELASTIC, "E.lazy", "s0"),
    ):
        ratios = data.layers(models, f"{data.SINK}/by_head/sink_ratio").values()
        pictures.curves(axes[0], LAYERS, [100 * ratio for ratio in ratios], label, role)
        snapshots = [record["snapshots"] for record in data.trainings()[long].values()]
        lists = [[100 * data.at(shot, "sinks/512/bos/excess_at_offsets") for shot in shots] for shots in snapshots]
        pictures.curves(axes[1], [shot["tokens"] / 1e6 for shot in snapshots[0]], lists, label, role)
    axes[0].set(xlabel="layer", ylabel="weight on the first key, %", xticks=LAYERS, ylim=(0, None))
    axes[1].set(xlabel="training tokens, millions", ylabel="excess sink, %", ylim=(0, None))
    pictures.legend_above(figure, axes[0], 2)
    charts.save_svg(figure, folder / "sink.svg", "Weight on the first key by layer, and excess sink over training")


def sparsity(folder):
    """Draws the share of query-key pairs with a nonzero weight by layer, and the time of the attention kernels in a
    decode step by context length."""
    figure, axes = charts.figure(720, 330, ncols=2)
    fractions = data.layers(data.ELASTIC, f"{data.SINK}/by_head/alive_fraction").values()
    pictures.curves(axes[0], LAYERS, [100 * fraction for fraction in fractions], "", "s0")
    axes[0].set(xlabel="layer", ylabel="pairs with nonzero weight, %", xticks=LAYERS, ylim=(0, 30))
    latency = data.steps()["lazy@200"]["model_latency"][1]
    for name, label, role in (("softmax-rope150k", "softmax", "s1"), ("as trained", "Lazy", "s0")):
        lengths = [int(length) for length in latency[name]]
        times = [data.at(latency[name], f"{length}/attention_decode_ms/median") for length in lengths]
        axes[1].plot(lengths, times, "o-", color=charts.color(role), label=label)
    charts.length_axis(axes[1], lengths)
    axes[1].set(xlabel="context, tokens", ylabel="attention per decode step, ms", ylim=(0, None))
    pictures.legend_above(figure, axes[1], 2)
    charts.save_svg(figure, folder / "sparsity.svg", "Nonzero pairs by layer, and decoding time by context length")


def length(folder):
    """Draws the loss by context length, for models trained on 200M and 600M tokens."""
    figure, axes = charts.figure(720, 340, ncols=2, sharey=True)
    models = (
        ("Lazy", "lazy", "s0"),
        ("softmax", "softmax", "s1"),
        ("softmax, trained ALiBi", "softmax-alibi-trained", "s4"),
    )
    for axis, title, blocks in ((axes[0], "200M tokens, 3 seeds", "B F1"), (axes[1], "600M tokens, 2 seeds", "E")):
        for label, cell, role in models:
            for model in (f"{block}.{cell}" for block in blocks.split()):
                seeds = [data.at(record, data.LENGTHS) for record in data.trainings().get(model, {}).values()]
                if seeds:
                    lengths = [int(tokens) for tokens in seeds[0]]
                    pictures.curves(axis, lengths, [[x["loss"] for x in seed.values()] for seed in seeds], label, role)
        charts.length_axis(axis, lengths)
        axis.set(xlabel="context, tokens", title=title)
    axes[0].set_ylabel("loss, nats per token")
    pictures.legend_above(figure, axes[0], 3)
    charts.save_svg(figure, folder / "length.svg", "Loss by context length; all models were trained on 512 tokens")


def compared(folder):
    """Draws the held-out loss and the excess sink of every model that was trained on 200M tokens."""
    figure, axes = charts.figure(720, 420, ncols=2, sharey=True)
    pictures.compare_models(
        axes, data.COMPARED, (data.LOSS._replace(title="held-out loss, nats per token"), data.EXCESS)
    )
    axes[1].set_xlim(0, None)
    charts.save_svg(figure, folder / "compared.svg", "Held-out loss and excess sink of ten models")


def write(folder):
    for draw in (head_start, other_text, sink, sparsity, length, compared):
        draw(folder)
