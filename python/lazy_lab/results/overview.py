"""The page README.md: the answer to "should I use Lazy Attention?", and six sections with its evidence."""

import numpy as np

from .. import statistics
from . import data, overview_pictures
from .data import (
    ALIVE,
    COMPARED,
    DENSITY,
    ELASTIC,
    EXCESS,
    LAMBADA,
    LENGTHS,
    LONG,
    LOSS,
    MINUS_SOFTMAX,
    OTHER_TEXT,
    RATIO,
    SINK,
    SOFTMAX,
    THRESHOLDED,
    TRAIN_TIME,
    Measure,
    at,
    minus,
    percent,
    ratio,
    steps,
    trainings,
    values,
)
from .text import effect, estimate, grid, mean, measures_by_columns, models_by_measures, number, table, write_page


def by_layer(title, first, last):
    """Returns the measure of the weight on the first key in the layers first to last, numbered from 1."""

    def read(model):
        found = data.layers([model], f"{SINK}/by_head/sink_ratio")
        return {seed: float(np.mean(by_layer[first - 1 : last])) for seed, by_layer in found.items()}

    return percent(title, read)


def rise(tokens):
    """Returns the measure of the loss at `tokens` minus the loss at 512 tokens."""
    losses = lambda model: [values(model, f"{LENGTHS}/{length}/loss") for length in (tokens, 512)]
    return Measure(str(tokens), lambda model: minus(*losses(model)))


def at_tokens(millions):
    """Returns the measure of the validation loss after a number of training tokens; {} for shorter trainings."""

    def read(model):
        tokens = np.array(at(trainings()[model][1], "training/validation/tokens")) / 1e6
        place = np.argmin(abs(tokens - millions))
        return values(model, f"training/validation/loss/{place}") if tokens[-1] > 0.99 * millions else {}

    return Measure(f"{millions}M", read)


def uptrained(title, path, scale=100):
    """Returns the measure of a converted pretrained model, which is named FOLDER/KIND as in results.json."""

    def read(model):
        folder, kind = model.split("/")
        return {x["seed"]: at(x, path) for x in data.uptraining(folder)["models"] if x["model"] == kind}

    return Measure(title, read, 1 if scale == 100 else 3, scale)


EARLY, LATE = (
    by_layer("weight on the first key, layers 1 to 8, %", 1, 8),
    by_layer("weight on the first key, layers 10 to 12, %", 10, 12),
)
SINKS = (
    EXCESS._replace(title="excess sink, windows of 512, %"),
    percent("excess sink, windows of 64, %", "measures/sinks/64/bos/excess_at_offsets"),
    percent("excess sink, windows of 512 without BOS, %", "measures/sinks/512/no_bos/excess_at_offsets"),
    percent("heads with more than 30 % on the first key, windows of 64, %", "measures/sinks/64/bos/sink_1"),
    EARLY,
    LATE,
)
RISES = {tokens: rise(tokens) for tokens in (1024, 2048, 4096)}
COMPARISONS = {  # title -> models, baselines
    "Elastic-Softmax - softmax, 200M, 3 seeds": (ELASTIC, SOFTMAX),
    "Lazy - softmax, 200M, 3 seeds": ("B.lazy", "B.softmax"),
    "Lazy - softmax, 600M, 2 seeds": LONG,
    "with - without distance bias, 200M, 3 seeds": (ELASTIC[1::2] + SOFTMAX[1::2], ELASTIC[::2] + SOFTMAX[::2]),
    "trained ALiBi - RoPE, both softmax, 200M, 3 seeds": ("F1.softmax-alibi-trained", "B.softmax"),
}
EARLY_LOSSES = {millions: at_tokens(millions) for millions in (50, 100, 200, 400, 600)}
UPTRAINED = {
    "loss": uptrained("held-out loss, nats", "heldout/loss", scale=1),
    "lambada": uptrained("LAMBADA, last word correct, points", "tasks/lambada_openai/acc"),
    "arc": uptrained("ARC easy, points", "tasks/arc_easy/acc"),
    "hellaswag": uptrained("HellaSwag, points", "tasks/hellaswag/acc_norm"),
    "sink": uptrained("weight on the first key, points", "attention/overall/sink_ratio"),
    "alive": uptrained("pairs with nonzero weight, points", "attention/overall/alive_fraction"),
}
TWO_BUDGETS = {
    "softmax, 200M": SOFTMAX,
    "Elastic-Softmax, 200M": ELASTIC,
    "difference, 200M, 3 seeds": [ELASTIC, SOFTMAX],
    "Lazy - softmax, 600M, 2 seeds": [*LONG],
}
POST_HOC = {
    "softmax": SOFTMAX,
    "thresholded": THRESHOLDED,
    "Elastic-Softmax": ELASTIC,
    "Elastic-Softmax - thresholded": [ELASTIC, THRESHOLDED],
}


def speed():
    """Returns the table of times by context length, and the fraction of time that attention saves at the longest."""
    latency = steps()["lazy@200"]["model_latency"][1]
    models = {"Lazy": "as trained", "softmax": "softmax-rope150k"}
    kinds = {"attention per decode step": "attention_decode_ms", "decode step": "decode_ms", "prefill": "prefill_ms"}
    times = {f"{kind}, {name}": (model, key) for kind, key in kinds.items() for name, model in models.items()}
    median = lambda length, column: at(latency, f"{column[0]}/{length}/{column[1]}/median")
    lengths = {length: length for length in latency["as trained"]}
    longest = [median(max(lengths, key=int), (model, "attention_decode_ms")) for model in models.values()]
    saved = 1 - longest[0] / longest[1]
    return grid("context", lengths, times, lambda row, column: number(median(row, column), 2)), saved


def collapse():
    """Returns the table of the collapse of the final hidden states by length, for models of 100M tokens, two seeds."""
    models = {"Lazy": "lazy", "softmax, RoPE base 1e4": "softmax", "softmax, RoPE base 1.5e5": "softmax-rope150k"}
    measures = [
        Measure(f"{title}, {tokens} tokens", f"lengths-{tokens}/collapse/{tokens}/{name}", digits)
        for title, name, digits in (("cosine", "cosine", 2), ("effective rank", "effective_rank", 0))
        for tokens in (512, 2048, 8192)
    ]
    named = {title: f"{model}@100" for title, model in (models | {"Mamba2": "mamba2"}).items()}
    return models_by_measures("100M tokens, 2 seeds", named, measures, mean)


def claims():
    """Returns the table of the primary claims of the protocol. One Holm family of the measured claims."""
    excess = EXCESS._replace(read=f"{SINK}/excess")  # of the protocol: rows with equal scores count as 0
    rises = [RISES[2048].of(model) for model in ("B.lazy", "B.softmax-base150k")]
    measured = {  # claim and its rule -> value per seed, bound and its side
        "It mitigates the sink: excess sink, Elastic-Softmax / softmax, below 0.25": (
            ratio(excess.of(ELASTIC), excess.of(SOFTMAX)),
            0.25,
            "below",
        ),
        "It eliminates the sink: excess sink of Elastic-Softmax below 0.005": (excess.of(ELASTIC), 0.005, "below"),
        "It lowers the loss: held-out loss, Elastic-Softmax - softmax, below 0": (
            minus(LOSS.of(ELASTIC), LOSS.of(SOFTMAX)),
            0,
            "below",
        ),
        "Lazy extrapolates better: rise of its loss from 512 to 2048 tokens - 0.75 of softmax's rise, below 0": (
            minus(*rises, factor=0.75),
            0,
            "below",
        ),
        "A start at tau = 0 hinders: sink ratio, tau from 0 / tau from -1, above 2": (
            ratio(RATIO.of("D.elastic-from-0"), RATIO.of("B.elastic")),
            2,
            "above",
        ),
        "Sparsity is learned: density, Elastic-Softmax - thresholded softmax, below -0.05": (
            minus(DENSITY.of(ELASTIC), DENSITY.of(THRESHOLDED)),
            -0.05,
            "below",
        ),
    }
    p_values = statistics.holm([statistics.p_value(found.values(), bound) for found, bound, _ in measured.values()])
    rows = []
    for (claim, (found, bound, side)), p in zip(measured.items(), p_values):
        answer = statistics.verdict(found.values(), p, bound, side)
        rows.append([claim, estimate(statistics.student_interval(found.values())), number(p), answer])
    return table(["claim of the paper and rule", "found", "adjusted p", ""], rows)


def write(folder):
    overview_pictures.write(folder)
    speed_table, saved = speed()
    head_start = [*EARLY_LOSSES.values(), LOSS._replace(title="end, whole split")]
    trained = {"trained on 200M, 3 seeds": [ELASTIC, SOFTMAX], "trained on 600M, 2 seeds": [*LONG]}
    models = {title: model for model, (title, _) in COMPARED.items()}
    pretrained = {"SmolLM2-135M": "smollm2-135m", "Gemma 3 270M": "gemma3-270m"}
    pretrained = {title: [f"{name}/lazy", f"{name}/softmax"] for title, name in pretrained.items()}
    tables = {
        "head_start": measures_by_columns("training tokens", head_start, trained),
        "other_text": measures_by_columns("", OTHER_TEXT, TWO_BUDGETS),
        "sink": measures_by_columns("", SINKS, TWO_BUDGETS),
        "sparsity": measures_by_columns("200M, 3 seeds", (ALIVE, DENSITY, LOSS), POST_HOC),
        "speed": speed_table,
        "length": grid(
            "rise of the loss from 512 tokens to", COMPARISONS, RISES, lambda row, column: effect(column, *row)
        ),
        "collapse": collapse(),
        "compared": models_by_measures("model", models, (LOSS, MINUS_SOFTMAX, EXCESS, ALIVE, LAMBADA, TRAIN_TIME)),
        "pretrained": measures_by_columns("Lazy - softmax, 3 seeds", UPTRAINED.values(), pretrained),
        "claims": claims(),
    }
    write_page(folder, "README", **globals() | {"tables": tables, "saved": saved})
