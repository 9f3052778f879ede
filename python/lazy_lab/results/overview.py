"""The page README.md: the answer to "should I use Lazy Attention?", and six sections with its evidence."""

import pandas as pd

from .. import statistics
from . import data, text
from .data import ALIVE, DENSITY, ELASTIC, EXCESS, LOSS, RATIO, SINK, SOFTMAX, Measure, percent


def at_tokens(millions):
    """Returns the Measure of the validation loss after `millions` million training tokens. Shorter trainings have no
    value."""

    def read(model):
        losses = data.validation_losses(model)
        nearest = min(losses, key=lambda tokens: abs(tokens - millions))
        return losses[nearest].of(model) if max(losses) > 0.99 * millions else pd.Series(dtype=float)

    return Measure(f"{millions}M, validation subset", read)


EARLY, NINTH, LATE = (
    percent(f"weight on the first key, {title}, %", tuple(f"{SINK}/by_head/sink_ratio/{n}" for n in layers))
    for title, layers in (("layers 1 to 8", range(8)), ("layer 9", [8]), ("layers 10 to 12", range(9, 12)))
)
EQUAL_SCORES = percent("", f"{SINK}/uniform_at_offsets")  # weight on the first key if all scores are equal
FIRST_SHARE = percent(
    "share of the first key in the total weight, %",
    lambda model: RATIO.of(model) / (RATIO.of(model) + DENSITY.of(model)),
)
SINKS = (
    EXCESS._replace(title="excess sink, windows of 512, %"),
    percent("excess sink, windows of 64, %", "measures/sinks/64/bos/excess_at_offsets"),
    percent("excess sink, windows of 512 without BOS, %", "measures/sinks/512/no_bos/excess_at_offsets"),
    percent("heads with more than 30 % on the first key, windows of 64, %", "measures/sinks/64/bos/sink_1"),
    *(FIRST_SHARE, EARLY, NINTH, LATE),
)
PACKING = ["F3.lazy", "C.softmax"]  # models that were trained on concatenated documents without BOS per sequence
PACKED = (LOSS, EXCESS._replace(title="excess sink, windows of 512 with BOS, %"), SINKS[2], ALIVE)
# How much the loss rises with the context, from 512 tokens, the training length
RISES = {
    tokens: Measure(str(tokens), [f"{data.LENGTHS}/{length}/loss" for length in (tokens, 512)])
    for tokens in (1024, 2048, 4096)
}
COMPARED = {title: model for model, (title, _) in data.COMPARED.items()}
HALF = ("F1.elastic-from-minus-05", "B.elastic")
SMOL = ["smollm2-135m/lazy", "smollm2-135m/softmax"]
# Rows or columns of tables. Title -> model, models or difference, see data.combine()
FOUR = {"softmax, 200M, mean of four": SOFTMAX, "Elastic-Softmax, 200M, mean of four": ELASTIC}
DIFFERENCES = {
    "Elastic-Softmax - softmax, 200M, 3 seeds": data.NORMALIZER,
    "Lazy - softmax, 200M, 3 seeds": data.LAZY,
    "Lazy - softmax, 600M, 2 seeds": data.LONG,
}
TWO_BUDGETS = FOUR | DIFFERENCES
RISE_ROWS = {
    **FOUR,
    "softmax, 200M": "B.softmax",
    "Lazy, 200M": "B.lazy",
    "softmax, 600M": "E.softmax",
    "Lazy, 600M": "E.lazy",
    **DIFFERENCES,
    "with - without distance bias, 200M, 3 seeds": [ELASTIC[i::2] + SOFTMAX[i::2] for i in (1, 0)],
    "trained ALiBi - RoPE, both softmax, 200M, 3 seeds": ["F1.softmax-alibi-trained", "B.softmax"],
}
LAST_WORD = [Measure("", f"measures/lambada/{windows}/last_word_loss") for windows in ("bos_every_window", "no_bos")]
WITHOUT_BOS = [Measure("", [no_bos.read, bos.read]) for bos, no_bos in (data.OTHER_TEXT[3:5], LAST_WORD)]
EARLY_LOSSES = {millions: at_tokens(millions) for millions in (50, 100, 200, 400, 600)}
HEAD_START = [*EARLY_LOSSES.values(), LOSS._replace(title="end, whole held-out split")]
UPTRAINED = {
    "loss": Measure("held-out loss, nats", "heldout/loss"),
    "lambada": percent("LAMBADA, last word correct, %", "tasks/lambada_openai/acc"),
    "arc": percent("ARC easy, %", "tasks/arc_easy/acc"),
    "hellaswag": percent("HellaSwag, %", "tasks/hellaswag/acc_norm"),
    "sink": percent("weight on the first key, %", "attention/overall/sink_ratio"),
    "alive": percent("pairs with nonzero weight, %", "attention/overall/alive_fraction"),
}


def speed():
    """Returns the table of times by context length, and numbers that compare Lazy with softmax at the longest
    context."""
    latency = data.trainings()["lazy@200"][1]["model_latency"]
    models = {"Lazy": latency["as trained"], "softmax": latency["softmax-rope150k"]}
    kinds = {"attention per decode step": "attention_decode_ms", "decode step": "decode_ms", "prefill": "prefill_ms"}
    rows = []
    for length in latency["as trained"]:
        times = [model[length][key] for key in kinds.values() for model in models.values()]
        cells = [statistics.Interval(time["median"], 2, *time["quartiles"]) for time in times]
        rows.append([length, *(text.estimate(cell, 2) for cell in cells)])
    longest = max(latency["as trained"], key=int)
    lazy, softmax = ({kind: model[longest][key]["median"] for kind, key in kinds.items()} for model in models.values())
    return {
        "table": text.table(["context", *(f"{kind}, {name}" for kind in kinds for name in models)], rows),
        "longest": longest,
        "ratios": {kind: lazy[kind] / softmax[kind] for kind in kinds},
        "saved_ms": softmax["attention per decode step"] - lazy["attention per decode step"],
    }


def claims():
    """Returns the table of the primary claims of the protocol. The p values of all measured claims are corrected
    together by Holm's method."""
    excess = EXCESS._replace(read=f"{SINK}/excess")  # excess as the protocol defines it
    rise, softmax_rise = (RISES[2048].of(model) for model in ("B.lazy", "B.softmax-base150k"))
    # Claim of the paper with its rule -> measured values, bound, claimed side, digits in the table
    stated = {
        "It mitigates the sink: excess sink, Elastic-Softmax / softmax, below 0.25": (
            excess.of(ELASTIC) / excess.of(SOFTMAX), 0.25, "below", 3),
        "It eliminates the sink: excess sink of Elastic-Softmax, %, below 0.5": (
            excess.of(ELASTIC), 0.5, "below", 1),
        "It lowers the loss: held-out loss, Elastic-Softmax - softmax, below 0": (
            LOSS.of(data.NORMALIZER), 0, "below", 3),
        "Lazy extrapolates better: rise to 2048 tokens - 0.75 of softmax's rise (base 1.5e5), below 0": (
            rise - 0.75 * softmax_rise, 0, "below", 3),
        "A start at tau = 0 hinders: weight on the first key, tau from 0 / tau from -1, above 2": (
            RATIO.of("D.elastic-from-0") / RATIO.of("B.elastic"), 2, "above", 3),
        "Sparsity is learned, in density: Elastic-Softmax - thresholded, points, below -5": (
            DENSITY.of([ELASTIC, data.THRESHOLDED]), -5, "below", 1),
    }  # fmt: skip
    p_values = statistics.holm([statistics.p_value(values, bound) for values, bound, *_ in stated.values()])
    rows = []
    for (claim, (values, bound, side, digits)), p in zip(stated.items(), p_values):
        found = statistics.student_interval(values)
        # The corrected p is at least as large as p. If it is below 0.05, the 95 % interval does not contain the bound.
        answer = "reproduced" if (found.mean < bound) == (side == "below") else "refuted"
        rows.append([claim, text.estimate(found, digits), text.number(p), answer if p < 0.05 else "open"])
    return text.table(["claim of the paper and rule", "found", "adjusted p", ""], rows)


def packed_share():
    """Returns the excess sink of Lazy divided by the excess sink of softmax, for models without BOS per sequence."""
    lazy, softmax = (EXCESS.of(model) for model in PACKING)
    return text.estimate(statistics.student_interval((lazy / softmax).dropna()), 2)


def clear():
    """Returns the titles of the measures on other texts whose interval at 600M tokens excludes zero."""
    found = {measure.title: measure.interval(data.LONG) for measure in data.OTHER_TEXT}
    return [title for title, interval in found.items() if interval.low > 0 or interval.high < 0]


def parameters(model):
    """Returns the number of parameters of a model as text."""
    record = data.trainings()[model][1]
    return f"{record.get('train', record)['parameters']:,}"
