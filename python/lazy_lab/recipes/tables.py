"""Tables 1 to 7 of the Lazy Attention paper (arXiv 2601.00919)."""

import numpy as np

from ..published import TABLE1_340M, TABLE2
from . import (
    ELASTIC,
    SOFTMAX,
    SOFTMAX_BASE,
    Column,
    Difference,
    Measurement,
    Model,
    Recipe,
    lazy_model,
    loss_column,
    model_measurement,
    sink_columns,
)

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
TRIAL = {"training.steps": 77, "lr_scheduler.warmup_steps": 10}  # trials of a learning rate have 10M tokens
RATES = (1e-3, 3e-3)
# Systems other than softmax and Lazy: name -> (kind in configs/models, width of the MLP at tiny scale, width of the MLP
# at small scale). With these widths, the number of parameters is within 3 % of the softmax model of the same scale.
SYSTEMS = {
    "gated-deltanet": ("gated-delta-net", 160, 1056),
    "titans-mag": ("titans-mag", 80, 712),
    "retnet": ("retnet", 88, 728),
    "mamba2": ("mamba2", 0, 0),
    "deltanet": ("delta-net", 248, 1400),
    "ttt-linear": ("ttt-linear", 232, 1384),
    "titans-lmm": ("titans-lmm", 168, 1056),
}
MORE = {  # (name of the system, scale) -> further configuration overrides
    ("titans-mag", "tiny"): {"model.num_heads": 4, "model.window_size": 64, "mixer.memory_expansion": 1},
    ("titans-mag", "small"): {"model.num_heads": 8, "model.window_size": 128},
    ("retnet", "tiny"): {"mixer.heads": 4},
    ("retnet", "small"): {"mixer.heads": 4},
    ("mamba2", "tiny"): {"model.num_hidden_layers": 6, "mixer.state_size": 32},
    ("mamba2", "small"): {"model.num_hidden_layers": 22},
    ("deltanet", "tiny"): {"mixer.heads": 2},
    ("ttt-linear", "tiny"): {"mixer.gate": False},
    ("ttt-linear", "small"): {"mixer.gate": False},
    ("titans-lmm", "tiny"): {"mixer.memory_expansion": 1},
}
LEARNING = ("titans-mag", "ttt-linear", "titans-lmm")  # trained with the better one of RATES at small scale
FILE_KINDS = {"gated-delta-net": "gated-deltanet", "delta-net": "deltanet"}  # names in configs/models


def table1_models(scale):
    # At small scale, the models of Table 1 are trained on 100M tokens only.
    shorter = {"training.steps": 763, "lr_scheduler.warmup_steps": 100} if scale.small else {}
    attention = [
        lazy_model(scale),
        SOFTMAX,
        SOFTMAX_BASE,
        lazy_model(scale, "no-positional", model__distance_bias_window=0, model__rope_theta=10000),
        lazy_model(scale, "no-elastic", model__normalizer="softmax"),
        Model("sigmoid", {"model.normalizer": "sigmoid"}),
    ]
    systems = []
    for name, (kind, tiny, small) in SYSTEMS.items():
        # At paper scale, the configuration files of the systems are used without other widths.
        widths = {"tiny": {"model.intermediate_size": tiny}, "small": {"model.intermediate_size": small}}
        sizes = widths.get(scale.name, {}) | MORE.get((name, scale.name), {})
        files = (f"models/{FILE_KINDS.get(kind, kind)}-340m.toml", "recipes/15b.toml") if scale.name == "paper" else ()
        rates = RATES if scale.small and name in LEARNING else ()
        systems.append(Model(name, sizes, kind, files, rates, TRIAL))
    longer = ("models/transformer-340m.toml", "recipes/15b.toml") if scale.name == "paper" else ()
    return [
        Model(m.name, shorter | m.overrides, m.kind, m.files or longer, m.rates, m.trial) for m in attention + systems
    ]


def table1_columns(scale):
    columns = [loss_column()]
    for index, (title, task, metric, factor) in enumerate(BENCHMARKS):
        paper = {name: values[index] for name, values in TABLE1_340M.items()}
        columns.append(Column(title, f"tasks {task} {metric}", factor, 2, paper))
    return columns


NORMALIZERS = [
    SOFTMAX,
    Model("sparsemax", {"model.normalizer": "sparsemax"}),
    Model("entmax15", {"model.normalizer": "entmax15"}),
    Model("elastic-constant", {"model.normalizer": "elastic", "model.offset": "constant", "model.offset_init": 0}),
    Model("elastic-from-0", {"model.normalizer": "elastic", "model.offset_init": 0}),
    ELASTIC,
    Model("elastic-fixed", {"model.normalizer": "elastic", "model.offset_trainable": False}),
]


def table2_columns(scale):
    loss, density, sink = ({name: values[i] for name, values in TABLE2.items()} for i in range(3))
    return [loss_column(paper=loss), *sink_columns(density, sink)]


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
HEADS = {"Q": "attention.q.projected", "K": "attention.k.projected", "V": "attention.v"}
# Title -> activation that is measured. The paper calls the normalized input of attention "hidden states".
STATES = {"attention input": "attention.input", "residual stream": "residual"}
# Number of the table -> (model that the paper measures, activations that are measured).
VECTORS = {
    "table4": ("Qwen3-4B", HEADS),
    "table5": ("Qwen3-4B", STATES),
    "table6": ("BLOOM", HEADS),
    "table7": ("BLOOM", STATES),
}


def first_over_others(place, text):
    """Returns a function that computes, for the activations `place`, the norm at the first position divided by the mean
    norm at the other positions, as a mean over layers and heads."""

    def value(measured):
        norms = np.array(measured["vectors"][text][place]["norm"])  # (layers, heads, positions)
        return float(np.mean(norms[..., 0] / norms[..., 1:].mean(axis=-1)))

    return value


def relative_spread(place, text):
    """Returns a function that computes how much the variance of the activations `place` varies with the position: the
    standard deviation over positions divided by the mean over positions, as a mean over layers and heads."""

    def value(measured):
        variances = np.array(measured["vectors"][text][place]["variance"])
        return float(np.mean(variances.std(axis=-1, ddof=1) / variances.mean(axis=-1)))

    return value


def vector_columns(places):
    columns = [
        Column(f"norm of {name}, first / others", first_over_others(place, "natural")) for name, place in places.items()
    ]
    for text in ("natural", "repeated"):
        columns += [
            Column(f"spread of the variance of {name}, {text}", relative_spread(place, text))
            for name, place in places.items()
        ]
    return columns


RECIPES = [
    Recipe(
        "table1",
        "comparison of models on nine benchmarks",
        "paper, Table 1",
        table1_models,
        lambda scale: [model_measurement(scale, "heldout", "sinks"), Measurement("tasks", needs_data=True)],
        table1_columns,
        tuple(
            Difference(
                f"Is the held-out loss of Lazy below the loss of {other}?", "held-out loss", "lazy", other, primary
            )
            for other, primary in (("softmax", True), ("softmax-base150k", True), ("no-elastic", False))
        ),
        notes=(
            "The published row has 340M parameters and 15B tokens; benchmarks without a file in --data are left out.",
        ),
    ),
    Recipe(
        "table2",
        "normalizers and offsets: loss, density, attention sink",
        "paper, Table 2",
        lambda scale: NORMALIZERS,
        lambda scale: [model_measurement(scale, "heldout", "sinks")],
        table2_columns,
        (
            Difference(
                "Is the loss of elastic below the loss of softmax?", "held-out loss", "elastic", "softmax", True
            ),
            Difference("Is the sink of elastic smaller?", "excess sink, points", "elastic", "softmax", True),
            Difference("Is a start at tau = 0 worse?", "held-out loss", "elastic-from-0", "elastic", True),
            Difference("Is a constant offset worse?", "held-out loss", "elastic-constant", "elastic", True),
            Difference("Is a fixed offset worse?", "held-out loss", "elastic-fixed", "elastic", True),
        ),
        notes=("The row of entmax is empty in the paper. Models have no distance bias.",),
    ),
    Recipe(
        "table3",
        "sizes of the benchmarks",
        "paper, Table 3",
        columns=lambda scale: [
            Column(task, f"datasets {task}", digits=0, paper={"data": size}) for task, size in TABLE3.items()
        ],
        notes=("The paper lists complete data sets; one split of each is scored.",),
    ),
    *(
        Recipe(
            name,
            f"norms and variances of {', '.join(places)} ({model})",
            f"paper, Table {name[-1]}",
            measurements=lambda scale: [Measurement("vectors", given=True, reads="")],
            columns=lambda scale, places=places: vector_columns(places),
            notes=("Measured on the models of --model, on the sentence of the paper and on one repeated token.",),
        )
        for name, (model, places) in VECTORS.items()
    ),
]
