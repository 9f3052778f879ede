"""Tables 1 to 7 of the Lazy Attention paper (arXiv 2601.00919)."""

import numpy as np

from ..published import TABLE1_340M
from .common import ELASTIC, EXCESS, LOSS, SOFTMAX, SOFTMAX_BASE, TABLE2_COLUMNS, published
from .recipe import Column, Difference, Measurement, Model, Recipe

# Columns of Table 1: (title, task of `lazy eval`, metric, factor from the metric to the unit of the table).
BENCHMARKS = (
    ("WikiText, perplexity per word", "wikitext", "word_perplexity", 1),
    ("LAMBADA, perplexity", "lambada_openai", "perplexity", 1),
    ("LAMBADA, %", "lambada_openai", "acc", 100),
    ("PIQA, %", "piqa", "acc", 100),
    ("HellaSwag, %", "hellaswag", "acc_norm", 100),
    ("WinoGrande, %", "winogrande", "acc", 100),
    ("ARC easy, %", "arc_easy", "acc", 100),
    ("ARC challenge, %", "arc_challenge", "acc_norm", 100),
    ("SIQA, %", "social_iqa", "acc", 100),
    ("BoolQ, %", "boolq", "acc", 100),
)
# Systems other than softmax and Lazy: (name, kind, overrides at tiny scale, overrides at small scale). The number of
# parameters is within 3 % of the softmax model of the same scale. A learning rate of 1e-3 was better than 3e-3 in
# trainings of 10M tokens.
MLP, HEADS, MIXER_HEADS, WINDOW = "model.intermediate_size", "model.num_heads", "mixer.heads", "model.window_size"
LAYERS, EXPANSION, RATE = "model.num_hidden_layers", "mixer.memory_expansion", "optimizer.lr"
SYSTEMS = (
    ("gated-deltanet", "gated-delta-net", {MLP: 160}, {MLP: 1056}),
    (
        "titans-mag",
        "titans-mag",
        {MLP: 80, HEADS: 4, WINDOW: 64, EXPANSION: 1},
        {MLP: 712, HEADS: 8, WINDOW: 128, RATE: 1e-3},
    ),
    ("retnet", "retnet", {MLP: 88, MIXER_HEADS: 4}, {MLP: 728, MIXER_HEADS: 4}),
    ("mamba2", "mamba2", {MLP: 0, LAYERS: 6, "mixer.state_size": 32}, {MLP: 0, LAYERS: 22}),
    ("deltanet", "delta-net", {MLP: 248, MIXER_HEADS: 2}, {MLP: 1400}),
    ("ttt-linear", "ttt-linear", {MLP: 232, "mixer.gate": False}, {MLP: 1384, "mixer.gate": False, RATE: 1e-3}),
    ("titans-lmm", "titans-lmm", {MLP: 168, EXPANSION: 1}, {MLP: 1056, RATE: 1e-3}),
)


def table1_models(scale):
    models = [
        scale.lazy(),
        SOFTMAX,
        SOFTMAX_BASE,
        scale.lazy("no-positional", {"model.distance_bias_window": 0, "model.rope_theta": 10000}),
        scale.lazy("no-elastic", {"model.normalizer": "softmax"}),
        Model("sigmoid", {"model.normalizer": "sigmoid"}),
    ]
    for name, kind, tiny, small in SYSTEMS:
        models.append(Model(name, {"tiny": tiny, "small": small, "paper": {}}[scale.name], kind))
    # The models of Table 1 are trained on 100M tokens at small scale, and on 15B tokens at paper scale.
    shorter = {"training.steps": 763, "lr_scheduler.warmup_steps": 100} if scale.name == "small" else {}
    paper = scale.name == "paper"
    return [
        Model(
            model.name,
            shorter | model.overrides,
            model.kind,
            (f"models/{'transformer' if model.attends else model.name}-340m.toml", "recipes/15b.toml") if paper else (),
        )
        for model in models
    ]


# Table 3 of the paper: benchmark -> number of samples of the complete data set.
TABLE3 = {
    "wikitext": 60634,
    "lambada_openai": 60000,
    "piqa": 16113,
    "hellaswag": 70000,
    "winogrande": 44000,
    "arc_easy": 7787,  # total number of samples of ARC easy and ARC challenge
    "social_iqa": 15554,
    "boolq": 15942,
}
# Benchmark -> beginning of the file names of its data set in --data.
TASK_FILES = {task: task for task in TABLE3}
TASK_FILES |= {"wikitext": "wiki", "lambada_openai": "lambada", "arc_easy": "arc", "social_iqa": "s"}


def dataset_sizes(folder):
    """Returns {task: number of lines} of the benchmarks' files in the folder of --data."""
    sizes = {}
    for file in sorted(folder.rglob("*.jsonl")) if folder else ():
        for task, start in TASK_FILES.items():
            if file.name.startswith(start):
                lines = file.read_text(encoding="utf-8").splitlines()
                sizes[task] = sizes.get(task, 0) + sum(bool(line.strip()) for line in lines)
    return sizes


# Tables 4 to 7: models that the paper measures, and activations that are measured. The paper calls the normalized input
# of attention "hidden states".
PROJECTIONS = {"Q": "attention.q.projected", "K": "attention.k.projected", "V": "attention.v"}
STATES = {"attention input": "attention.input", "residual stream": "residual"}
VECTORS = (
    ("table4", "Qwen3-4B", PROJECTIONS),
    ("table5", "Qwen3-4B", STATES),
    ("table6", "BLOOM", PROJECTIONS),
    ("table7", "BLOOM", STATES),
)


def first_over_others(norms):
    """Returns the norm at the first position divided by the mean norm at the other positions, as a mean over layers and
    heads. norms: (layers, heads, positions)."""
    norms = np.array(norms)
    return float(np.mean(norms[..., 0] / norms[..., 1:].mean(axis=-1)))


def relative_spread(variances):
    """Returns how much the variance varies with the position: the standard deviation over positions divided by the mean
    over positions, as a mean over layers and heads. variances: (layers, heads, positions)."""
    variances = np.array(variances)
    return float(np.mean(variances.std(axis=-1, ddof=1) / variances.mean(axis=-1)))


def vector_columns(places):
    columns = [
        ("norm of {}, first / others", "natural", "norm", first_over_others),
        ("spread of the variance of {}, natural", "natural", "variance", relative_spread),
        ("spread of the variance of {}, repeated", "repeated", "variance", relative_spread),
    ]
    return [
        Column(title.format(name), f"vectors/{text}/{place}/{key}", reduce=of)
        for title, text, key, of in columns
        for name, place in places.items()
    ]


def recipes(scale):
    benchmarks = [Column(title, f"tasks/{task}/{metric}", factor, 2) for title, task, metric, factor in BENCHMARKS]
    below = "Is the held-out loss of Lazy below the loss of"
    return [
        Recipe(
            "table1",
            "comparison of models on nine benchmarks",
            "paper, Table 1",
            table1_models(scale),
            [scale.measure("heldout", "sinks"), Measurement("tasks", needs_data=True)],
            [LOSS, *published(benchmarks, TABLE1_340M)],
            [
                Difference(f"{below} softmax?", LOSS, "lazy", "softmax", True),
                Difference(f"{below} softmax-base150k?", LOSS, "lazy", "softmax-base150k", True),
                Difference(f"{below} no-elastic?", LOSS, "lazy", "no-elastic"),
            ],
            ["The published row has 340M parameters and 15B tokens; benchmarks without a file in --data are left out."],
        ),
        Recipe(
            "table2",
            "normalizers and offsets: loss, density, attention sink",
            "paper, Table 2",
            [
                SOFTMAX,
                Model("sparsemax", {"model.normalizer": "sparsemax"}),
                Model("entmax15", {"model.normalizer": "entmax15"}),
                Model("elastic-constant", ELASTIC.overrides | {"model.offset": "constant", "model.offset_init": 0}),
                Model("elastic-from-0", ELASTIC.overrides | {"model.offset_init": 0}),
                ELASTIC,
                Model("elastic-fixed", ELASTIC.overrides | {"model.offset_trainable": False}),
            ],
            [scale.measure("heldout", "sinks")],
            TABLE2_COLUMNS,
            [
                Difference("Is the loss of elastic below the loss of softmax?", LOSS, "elastic", "softmax", True),
                Difference("Is the sink of elastic smaller?", EXCESS, "elastic", "softmax", True),
                Difference("Is a start at tau = 0 worse?", LOSS, "elastic-from-0", "elastic", True),
                Difference("Is a constant offset worse?", LOSS, "elastic-constant", "elastic", True),
                Difference("Is a fixed offset worse?", LOSS, "elastic-fixed", "elastic", True),
            ],
            ["The row of entmax is empty in the paper. Models have no distance bias."],
        ),
        Recipe(
            "table3",
            "sizes of the benchmarks",
            "paper, Table 3",
            columns=[Column(task, f"datasets/{task}", digits=0, paper={"data": size}) for task, size in TABLE3.items()],
            notes=["The paper lists complete data sets; one split of each is scored."],
        ),
    ] + [
        Recipe(
            name,
            f"norms and variances of {', '.join(places)} ({model})",
            f"paper, Table {name[-1]}",
            measurements=[Measurement("vectors", given=True, reads="")],
            columns=vector_columns(places),
            notes=["Measured on the models of --model, on the sentence of the paper and on one repeated token."],
        )
        for name, model, places in VECTORS
    ]
