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
    OTHER_TEXT,
    RATIO,
    SINK,
    SOFTMAX,
    TRAIN_TIME,
    Measure,
    at,
    combine,
    percent,
    steps,
    trainings,
    values,
)
from .text import effect, estimate, grid, mean, models_by_measures, number, table, write_page


def by_layer(title, first, last):
    """Returns the measure of the weight on the first key in the layers first to last, numbered from 1."""

    def read(model):
        found = data.layers([model], f"{SINK}/by_head/sink_ratio")
        return {seed: float(np.mean(by_layer[first - 1 : last])) for seed, by_layer in found.items()}

    return percent(title, read)


def rise(tokens):
    """Returns the measure of the loss at `tokens` minus the loss at 512 tokens."""
    losses = lambda model: [values(model, f"{LENGTHS}/{length}/loss") for length in (tokens, 512)]
    return Measure(str(tokens), lambda model: combine(lambda long, short: long - short, *losses(model)))


EARLY, LATE = by_layer("first key, layers 1 to 8, %", 1, 8), by_layer("first key, layers 10 to 12, %", 10, 12)
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
POST_HOC = {ALIVE: "sinks/512/bos/alive_fraction", DENSITY: "sinks/512/bos/density", LOSS: "heldout/loss"}


def head_start():
    """Returns the table of the differences during training, and the measures at 50M and 100M tokens."""

    def at_tokens(n):
        def read(model):
            tokens = np.array(at(trainings()[model][1], "training/validation/tokens")) / 1e6
            return values(model, f"training/validation/loss/{np.argmin(abs(tokens - n))}")

        return Measure(f"{n}M", read)

    at_count = {n: at_tokens(n) for n in (50, 100, 200, 400, 600)}
    rows = [
        [measure.title, effect(measure, ELASTIC, SOFTMAX) if n <= 200 else "", effect(measure, *LONG)]
        for n, measure in at_count.items()
    ]
    rows.append(["end, whole split", effect(LOSS, ELASTIC, SOFTMAX), effect(LOSS, *LONG)])
    return at_count, table(["training tokens", "trained on 200M, 3 seeds", "trained on 600M, 2 seeds"], rows)


def two_budgets(measures):
    """Returns a table with the levels of softmax and Elastic-Softmax and their differences at 200M and 600M tokens."""
    columns = {
        "softmax, 200M": lambda measure: mean(measure, SOFTMAX),
        "Elastic-Softmax, 200M": lambda measure: mean(measure, ELASTIC),
        "difference, 200M, 3 seeds": lambda measure: effect(measure, ELASTIC, SOFTMAX),
        "Lazy - softmax, 600M, 2 seeds": lambda measure: effect(measure, *LONG),
    }
    return grid("", {measure.title: measure for measure in measures}, columns, lambda row, column: column(row))


def post_hoc(measure):
    """Returns {seed: value} of trained softmax models whose weights p pass through ReLU(p - 1 / i)."""
    return measure._replace(read=f"measures/post_hoc/{POST_HOC[measure]}").of(SOFTMAX)


def sparsity():
    rows = []
    for measure in POST_HOC:
        thresholded, style = post_hoc(measure), {"digits": measure.digits, "scale": measure.scale}
        difference = statistics.paired_difference(thresholded, measure.of(ELASTIC))
        shown = number(statistics.student_interval(thresholded.values()).mean, **style)
        cells = [mean(measure, SOFTMAX), shown, mean(measure, ELASTIC), estimate(difference, signed=True, **style)]
        rows.append([measure.title, *cells])
    return table(["200M, 3 seeds", "softmax", "thresholded", "Elastic-Softmax", "Elastic-Softmax - thresholded"], rows)


def speed():
    """Returns the table of times by context length, and the fraction of time that attention saves at the longest."""
    latency = steps()["lazy@200"]["model_latency"][1]
    models = {"Lazy": "as trained", "softmax": "softmax-rope150k"}
    kinds = {"attention per decode step": "attention_decode_ms", "decode step": "decode_ms", "prefill": "prefill_ms"}
    times = {f"{kind}, {name}": (model, key) for kind, key in kinds.items() for name, model in models.items()}
    median = lambda length, column: at(latency, f"{column[0]}/{length}/{column[1]}/median")
    lengths = {length: length for length in latency["as trained"]}
    longest = [median(max(lengths, key=int), (model, "attention_decode_ms")) for model in models.values()]
    return grid("context", lengths, times, lambda row, column: number(median(row, column), 2)), 1 - longest[
        0
    ] / longest[1]


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


def compared():
    columns = {measure.title: measure for measure in (EXCESS, ALIVE, LAMBADA, TRAIN_TIME)}
    cell = lambda measure, model: mean(measure, model) if measure is TRAIN_TIME else estimate_of(measure, model)
    estimate_of = lambda measure, model: estimate(measure.level(model), measure.digits, measure.scale)
    rows = [
        [title, estimate_of(LOSS, model), effect(LOSS, model, "B.softmax"), *(cell(c, model) for c in columns.values())]
        for model, (title, _) in COMPARED.items()
    ]
    return table(["model", "held-out loss", "minus softmax", *columns], rows)


def pretrained():
    """Returns the measures of converted pretrained models, and the table of Lazy minus softmax. Both models were trained
    on the same further tokens."""

    def read(*path):
        def by_seed(model):
            folder, kind = model.split("/")
            found = [entry for entry in data.uptraining(folder)["models"] if entry["model"] == kind]
            return {entry["seed"]: at(entry, "/".join(path)) for entry in found}

        return by_seed

    measures = {
        "loss": Measure("held-out loss, nats", read("heldout/loss")),
        "lambada": percent("LAMBADA, last word correct, points", read("tasks/lambada_openai/acc")),
        "arc": percent("ARC easy, points", read("tasks/arc_easy/acc")),
        "hellaswag": percent("HellaSwag, points", read("tasks/hellaswag/acc_norm")),
        "sink": percent("weight on the first key, points", read("attention/overall/sink_ratio")),
        "alive": percent("pairs with nonzero weight, points", read("attention/overall/alive_fraction")),
    }
    models = {"SmolLM2-135M": "smollm2-135m", "Gemma 3 270M": "gemma3-270m"}
    cell = lambda measure, folder: effect(measure, f"{folder}/lazy", f"{folder}/softmax")
    rows = {measure.title: measure for measure in measures.values()}
    return measures, grid("Lazy - softmax, 3 seeds", rows, models, cell)


def claims():
    """Returns the table of the primary claims of the protocol. One Holm family of the measured claims."""
    excess = EXCESS._replace(read=f"{SINK}/excess")  # of the protocol: rows with equal scores count as 0
    ratio, difference = (lambda a, b: a / b), (lambda a, b: a - b)
    extrapolation = lambda a, b: a - 0.75 * b
    twins = RISES[2048].of("B.lazy"), RISES[2048].of("B.softmax-base150k")
    starts = RATIO.of("D.elastic-from-0"), RATIO.of("B.elastic")
    measured = (  # claim, rule, value per seed, bound and its side
        (
            "Elastic-Softmax mitigates the sink",
            "excess sink, Elastic-Softmax / softmax, below 0.25",
            combine(ratio, excess.of(ELASTIC), excess.of(SOFTMAX)),
            0.25,
            "below",
        ),
        ("It eliminates the sink", "excess sink below 0.005", excess.of(ELASTIC), 0.005, "below"),
        (
            "It lowers the loss",
            "held-out loss, Elastic-Softmax - softmax, below 0",
            combine(difference, LOSS.of(ELASTIC), LOSS.of(SOFTMAX)),
            0,
            "below",
        ),
        (
            "Lazy extrapolates better",
            "rise of its loss from 512 to 2048 tokens - 0.75 of softmax's rise, below 0",
            combine(extrapolation, *twins),
            0,
            "below",
        ),
        (
            "A start at tau = 0 hinders",
            "sink ratio, tau from 0 / tau from -1, above 2",
            combine(ratio, *starts),
            2,
            "above",
        ),
        (
            "Sparsity is learned",
            "density, Elastic-Softmax - thresholded softmax, below -0.05",
            combine(difference, DENSITY.of(ELASTIC), post_hoc(DENSITY)),
            -0.05,
            "below",
        ),
    )
    p_values = statistics.holm([statistics.p_value(found.values(), bound) for _, _, found, bound, _ in measured])
    rows = [
        [
            claim,
            rule,
            estimate(statistics.student_interval(found.values())),
            number(p),
            statistics.verdict(found.values(), p, bound, side),
        ]
        for (claim, rule, found, bound, side), p in zip(measured, p_values)
    ]
    return table(["claim of the paper", "rule, fixed before the runs", "found", "adjusted p", ""], rows)


def write(folder):
    overview_pictures.write(folder)
    at_count, head_start_table = head_start()
    uptrained, uptrained_table = pretrained()
    speed_table, saved = speed()
    tables = {
        "head_start": head_start_table,
        "other_text": two_budgets(OTHER_TEXT),
        "sink": two_budgets(SINKS),
        "sparsity": sparsity(),
        "speed": speed_table,
        "length": grid(
            "rise of the loss from 512 tokens to", COMPARISONS, RISES, lambda row, column: effect(column, *row)
        ),
        "collapse": collapse(),
        "compared": compared(),
        "pretrained": uptrained_table,
        "claims": claims(),
    }
    names = globals() | {"tables": tables, "at": at_count, "uptrained": uptrained, "saved": saved}
    write_page(folder, "README", **names)
