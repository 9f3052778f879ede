"""Draws the six pictures of the page docs/results/README.md."""

from .. import charts
from . import data, pictures
from .data import Measure, percent


@pictures.picture("head-start", "Difference of the validation loss over training", 330)
def head_start(figure, axes):
    for model, difference, label, role in (
        ("B.lazy", data.NORMALIZER, "Elastic-Softmax - softmax, trained on 200M tokens", "s0"),
        ("E.lazy", data.LONG, "Lazy - softmax, trained on 600M tokens", "s3"),
    ):
        pictures.curves(axes, pictures.points(data.validation_losses(model), difference), label, role)
    axes.axhline(0, **pictures.ZERO_LINE)
    axes.set(xlabel="training tokens, millions", ylabel="difference, nats per token", ylim=(-0.5, 0.1))
    axes.legend(loc="lower right")


@pictures.picture("other-text", "Differences on WikiText and LAMBADA", 330, legend=2, ncols=2, width_ratios=(2, 1))
def other_text(figure, axes):
    for axis, chosen, label in (
        (axes[0], data.OTHER_TEXT[:5], "loss, nats per token"),
        (axes[1], data.OTHER_TEXT[5:], "accuracy, points"),
    ):
        rows = []
        for measure in chosen:
            title = measure.title.split(", ")[0].replace(" without", "\nwithout")
            rows += [(title, measure.interval(data.NORMALIZER), "s0"), ("", measure.interval(data.LONG), "s3")]
        pictures.intervals(axis, rows, label)
        axis.axvline(0, **pictures.ZERO_LINE)
    axes[0].set_xlim(-0.62, 0.22)
    for role, label in (("s0", "200M tokens, 3 seeds"), ("s3", "600M tokens, 2 seeds")):
        axes[0].plot([], [], "o-", color=charts.color(role), label=label)


@pictures.picture("sink", "Weight on the first key by layer, and excess sink over training", 330, legend=2, ncols=2)
def sink(figure, axes):
    ratios = data.by_layer(f"{data.SINK}/by_head/sink_ratio")
    for label, models, long, role in (
        ("softmax", data.SOFTMAX, "E.softmax", "s1"),
        ("Elastic-Softmax", data.ELASTIC, "E.lazy", "s0"),
    ):
        pictures.curves(axes[0], pictures.points(ratios, models), label, role)
        excess = {
            snapshot["tokens"] / 1e6: percent("", f"snapshots/{place}/sinks/512/bos/excess_at_offsets")
            for place, snapshot in enumerate(data.trainings()[long][1]["snapshots"])
        }
        pictures.curves(axes[1], pictures.points(excess, long), label, role)
    axes[0].set(xlabel="layer", ylabel="weight on the first key, %", xticks=list(ratios), ylim=(0, None))
    axes[1].set(xlabel="training tokens, millions", ylabel="excess sink, %", ylim=(0, None))


@pictures.picture("sparsity", "Nonzero pairs by layer, and decoding time by context length", 330, legend=2, ncols=2)
def sparsity(figure, axes):
    fractions = data.by_layer(f"{data.SINK}/by_head/alive_fraction")
    pictures.curves(axes[0], pictures.points(fractions, data.ELASTIC), "", "s0")
    axes[0].set(xlabel="layer", ylabel="pairs with nonzero weight, %", xticks=list(fractions), ylim=(0, 30))
    for name, label, role in (("softmax-rope150k", "softmax", "s1"), ("as trained", "Lazy", "s0")):
        path = f"model_latency/{name}"
        lengths = data.at(data.trainings()["lazy@200"][1], path)
        times = {int(length): Measure("", f"{path}/{length}/attention_decode_ms/median") for length in lengths}
        pictures.curves(axes[1], pictures.points(times, "lazy@200"), label, role, marker="o")
    charts.length_axis(axes[1], list(times))
    axes[1].set(xlabel="context, tokens", ylabel="attention per decode step, ms", ylim=(0, None))


@pictures.picture(
    "length", "Loss by context length; all models were trained on 512 tokens", 340, legend=3, ncols=2, sharey=True
)
def length(figure, axes):
    styles = (("Lazy", "s0"), ("softmax", "s1"), ("softmax, trained ALiBi", "s4"))
    lengths = data.at(data.trainings()["B.lazy"][1], data.LENGTHS)
    losses = {int(length): Measure("", f"{data.LENGTHS}/{length}/loss") for length in lengths}
    for axis, title, models in (
        (axes[0], "200M tokens, 3 seeds", [*data.LAZY, "F1.softmax-alibi-trained"]),
        (axes[1], "600M tokens, 2 seeds", data.LONG),
    ):
        for model, style in zip(models, styles):
            pictures.curves(axis, pictures.points(losses, model), *style)
        charts.length_axis(axis, list(losses))
        axis.set(xlabel="context, tokens", title=title)
    axes[0].set_ylabel("loss, nats per token")


@pictures.picture("compared", "Held-out loss and excess sink of ten models", 420, ncols=2, sharey=True)
def compared(figure, axes):
    loss = data.LOSS._replace(title="held-out loss, nats per token")
    pictures.compare_models(axes, data.COMPARED, (loss, data.EXCESS))
    axes[1].set_xlim(0, None)
