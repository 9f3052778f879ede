"""The page README.md: the answer to "should I use Lazy Attention?", and six sections with its evidence."""

import numpy as np

from .. import statistics
from . import data, overview_pictures, text


def by_layer(title, first, last):
    """Returns the Measure of the weight on the first key in the layers `first` to `last`, counted from 1."""

    def read(model):
        found = data.layers([model], f"{data.SINK}/by_head/sink_ratio")
        return {seed: float(np.mean(by_layer[first - 1 : last])) for seed, by_layer in found.items()}

    return data.percent(title, read)


def rise(tokens):
    """Returns the Measure of how much the loss rises with the context: the loss at a context of `tokens` tokens minus
    the loss at 512 tokens, the training length."""
    losses = lambda model: [data.values(model, f"{data.LENGTHS}/{length}/loss") for length in (tokens, 512)]
    return data.Measure(str(tokens), lambda model: data.minus(*losses(model)))


def at_tokens(millions):
    """Returns the Measure of the validation loss after `millions` million training tokens. Shorter trainings have no
    value."""

    def read(model):
        tokens = np.array(data.at(data.trainings()[model][1], "training/validation/tokens")) / 1e6
        place = np.argmin(abs(tokens - millions))
        return data.values(model, f"training/validation/loss/{place}") if tokens[-1] > 0.99 * millions else {}

    return data.Measure(f"{millions}M, validation subset", read)


def uptrained(title, path, scale=100):
    """Returns the Measure at a path of results.json of `lazy uptrain`. Its models are named FOLDER/KIND, for example
    "smollm2-135m/lazy"."""

    def read(model):
        folder, kind = model.split("/")
        return {x["seed"]: data.at(x, path) for x in data.uptraining(folder)["models"] if x["model"] == kind}

    return data.Measure(title, read, 1 if scale == 100 else 3, scale)


EARLY, NINTH, LATE = (
    by_layer(f"weight on the first key, {title}, %", first, last)
    for title, first, last in (("layers 1 to 8", 1, 8), ("layer 9", 9, 9), ("layers 10 to 12", 10, 12))
)
EQUAL_SCORES = data.percent("", f"{data.SINK}/uniform_at_offsets")  # weight on the first key if all scores are equal
FIRST_SHARE = data.percent(
    "share of the first key in the total weight, %",
    lambda model: data.combine(
        lambda first, others: first / (first + others), data.RATIO.of(model), data.DENSITY.of(model)
    ),
)
SINKS = (
    data.EXCESS._replace(title="excess sink, windows of 512, %"),
    data.percent("excess sink, windows of 64, %", "measures/sinks/64/bos/excess_at_offsets"),
    data.percent("excess sink, windows of 512 without BOS, %", "measures/sinks/512/no_bos/excess_at_offsets"),
    data.percent("heads with more than 30 % on the first key, windows of 64, %", "measures/sinks/64/bos/sink_1"),
    *(FIRST_SHARE, EARLY, NINTH, LATE),
)
RISES = {tokens: rise(tokens) for tokens in (1024, 2048, 4096)}
HALF = ("F1.elastic-from-minus-05", "B.elastic")
SMOL = ("smollm2-135m/lazy", "smollm2-135m/softmax")
# Rows or columns of tables. Title -> model or tuple of models (the table shows the mean of the measure), or list
# [models, baselines] (the table shows the difference models - baselines).
FOUR = {"softmax, 200M, mean of four": data.SOFTMAX, "Elastic-Softmax, 200M, mean of four": data.ELASTIC}
DIFFERENCES = {
    "Elastic-Softmax - softmax, 200M, 3 seeds": [data.ELASTIC, data.SOFTMAX],
    "Lazy - softmax, 200M, 3 seeds": [*data.LAZY],
    "Lazy - softmax, 600M, 2 seeds": [*data.LONG],
}
SINGLE = {"softmax, 200M": "B.softmax", "Lazy, 200M": "B.lazy", "softmax, 600M": "E.softmax", "Lazy, 600M": "E.lazy"}
BIAS, NO_BIAS = (data.ELASTIC[i::2] + data.SOFTMAX[i::2] for i in (1, 0))
POSITIONS = {
    "with - without distance bias, 200M, 3 seeds": [BIAS, NO_BIAS],
    "trained ALiBi - RoPE, both softmax, 200M, 3 seeds": ["F1.softmax-alibi-trained", "B.softmax"],
}
TWO_BUDGETS = FOUR | DIFFERENCES
RISE_ROWS = FOUR | SINGLE | DIFFERENCES | POSITIONS
POST_HOC = {
    **{"softmax": data.SOFTMAX, "thresholded": data.THRESHOLDED, "Elastic-Softmax": data.ELASTIC},
    "Elastic-Softmax - thresholded": [data.ELASTIC, data.THRESHOLDED],
}
LAST_WORD = [
    data.Measure("", f"measures/lambada/{windows}/last_word_loss") for windows in ("bos_every_window", "no_bos")
]
EARLY_LOSSES = {millions: at_tokens(millions) for millions in (50, 100, 200, 400, 600)}
HEAD_START = [*EARLY_LOSSES.values(), data.LOSS._replace(title="end, whole held-out split")]
UPTRAINED = {
    "loss": uptrained("held-out loss, nats", "heldout/loss", scale=1),
    "lambada": uptrained("LAMBADA, last word correct, %", "tasks/lambada_openai/acc"),
    "arc": uptrained("ARC easy, %", "tasks/arc_easy/acc"),
    "hellaswag": uptrained("HellaSwag, %", "tasks/hellaswag/acc_norm"),
    "sink": uptrained("weight on the first key, %", "attention/overall/sink_ratio"),
    "alive": uptrained("pairs with nonzero weight, %", "attention/overall/alive_fraction"),
}
PRETRAINED = {
    f"{title}: {kind}": chosen
    for title, name in (("SmolLM2-135M", "smollm2-135m"), ("Gemma 3 270M", "gemma3-270m"))
    for kind, chosen in (
        ("Lazy", f"{name}/lazy"),
        ("softmax", f"{name}/softmax"),
        ("difference", [f"{name}/lazy", f"{name}/softmax"]),
    )
}


def without_bos(with_bos, no_bos):
    """Returns by how much a measure of the softmax models (mean of four models) changes if the text has no BOS, with a
    confidence interval."""
    return statistics.student_interval(data.minus(no_bos.of(data.SOFTMAX), with_bos.of(data.SOFTMAX)).values())


def speed():
    """Returns the table of times by context length, and numbers that compare Lazy with softmax at the longest
    context."""
    latency = data.steps()["lazy@200"]["model_latency"][1]
    models = {"Lazy": "as trained", "softmax": "softmax-rope150k"}
    kinds = {"attention per decode step": "attention_decode_ms", "decode step": "decode_ms", "prefill": "prefill_ms"}
    columns = {f"{kind}, {name}": (model, key) for kind, key in kinds.items() for name, model in models.items()}
    times = lambda length, column: data.at(latency, f"{column[0]}/{length}/{column[1]}")
    lengths = {length: length for length in latency["as trained"]}
    longest = max(lengths, key=int)
    medians = {
        kind: [times(longest, (model, key))["median"] for model in models.values()] for kind, key in kinds.items()
    }

    def cell(length, column):
        found = times(length, column)
        return text.estimate(statistics.Interval(found["median"], 2, *found["quartiles"]), 2)

    return {
        "table": text.grid("context", lengths, columns, cell),
        "longest": longest,
        "ratios": {kind: lazy / softmax for kind, (lazy, softmax) in medians.items()},
        "saved_ms": medians["attention per decode step"][1] - medians["attention per decode step"][0],
    }


def collapse():
    """Returns the table of the collapse of the final hidden states by context length, for models that were trained on
    100M tokens with two seeds."""
    models = {"Lazy": "lazy", "softmax, RoPE base 1e4": "softmax", "softmax, RoPE base 1.5e5": "softmax-rope150k"}
    measures = [
        data.Measure(f"{title}, {tokens} tokens", f"lengths-{tokens}/collapse/{tokens}/{name}", digits)
        for title, name, digits in (("cosine", "cosine", 2), ("effective rank", "effective_rank", 0))
        for tokens in (512, 2048, 8192)
    ]
    named = {title: f"{model}@100" for title, model in (models | {"Mamba2": "mamba2"}).items()}
    return text.models_by_measures("100M tokens, 2 seeds", named, measures, text.mean)


CLAIMS = (  # (claim with its rule, bound, claimed side of the bound, digits in the table, factor in the table)
    ("It mitigates the sink: excess sink, Elastic-Softmax / softmax, below 0.25", 0.25, "below", 3, 1),
    ("It eliminates the sink: excess sink of Elastic-Softmax, %, below 0.5", 0.005, "below", 1, 100),
    ("It lowers the loss: held-out loss, Elastic-Softmax - softmax, below 0", 0, "below", 3, 1),
    ("Lazy extrapolates better: rise to 2048 tokens - 0.75 of softmax's rise (base 1.5e5), below 0", 0, "below", 3, 1),
    ("A start at tau = 0 hinders: weight on the first key, tau from 0 / tau from -1, above 2", 2, "above", 3, 1),
    ("Sparsity is learned, in density: Elastic-Softmax - thresholded, points, below -5", -0.05, "below", 1, 100),
)


def claims():
    """Returns the table of the primary claims of the protocol. The p values of all measured claims are corrected
    together by Holm's method."""
    excess = data.EXCESS._replace(read=f"{data.SINK}/excess")  # excess as the protocol defines it
    measured = [
        data.ratio(excess.of(data.ELASTIC), excess.of(data.SOFTMAX)),
        excess.of(data.ELASTIC),
        data.minus(data.LOSS.of(data.ELASTIC), data.LOSS.of(data.SOFTMAX)),
        data.minus(RISES[2048].of("B.lazy"), RISES[2048].of("B.softmax-base150k"), factor=0.75),
        data.ratio(data.RATIO.of("D.elastic-from-0"), data.RATIO.of("B.elastic")),
        data.minus(data.DENSITY.of(data.ELASTIC), data.DENSITY.of(data.THRESHOLDED)),
    ]
    p_values = statistics.holm([statistics.p_value(x.values(), claim[1]) for x, claim in zip(measured, CLAIMS)])
    rows = []
    for (claim, bound, side, *style), found, p in zip(CLAIMS, measured, p_values):
        answer = statistics.verdict(found.values(), p, bound, side)
        rows.append([claim, text.estimate(statistics.student_interval(found.values()), *style), text.number(p), answer])
    return text.table(["claim of the paper and rule", "found", "adjusted p", ""], rows)


def write(folder):
    overview_pictures.write(folder)
    excluding_zero = lambda interval: interval.low > 0 or interval.high < 0
    parameters = {model: data.trainings()[model][1]["parameters"] for model in data.LAZY}
    parameters["gated@200"] = int(data.values("gated@200", "train/parameters")[1])
    chosen = {
        "compared": {title: model for model, (title, _) in data.COMPARED.items()},
        "clear": [measure.title for measure in data.OTHER_TEXT if excluding_zero(measure.effect(*data.LONG))],
        "parameters": {model: f"{count:,}" for model, count in parameters.items()},
        "speed": speed(),
    }
    text.write_page(folder, "README", **globals() | chosen)
