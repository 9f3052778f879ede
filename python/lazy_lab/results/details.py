"""The page details.md: effects of the parts of Lazy Attention, further checks, and all trainings of the protocol."""

import itertools

from .. import statistics
from . import data, text
from .data import ALIVE, DENSITY, ELASTIC, EXCESS, LAMBADA, LENGTHS, LOSS, RATIO, SOFTMAX, Measure

# Factorial design: (Elastic-Softmax, RoPE base 1.5e5, distance bias) -> model. 1: the model has the part, 0: it does
# not.
FACTORS = dict(zip(itertools.product((0, 1), repeat=3), (*SOFTMAX, *ELASTIC)))
PARTS = ("Elastic-Softmax", "RoPE base 1.5e5", "bias")
LONG_WINDOWS = Measure("loss in windows of 2048", f"{LENGTHS}/2048/loss")
ACTIVATIONS = "measures/activations"
EFFECTS = (
    LOSS,
    LAMBADA,
    EXCESS,
    DENSITY,
    Measure("cosine of hidden states", f"{ACTIVATIONS}/collapse/cosine"),
    Measure("effective rank of hidden states", f"{ACTIVATIONS}/collapse/effective_rank", 1),
    Measure("kurtosis of the residual stream", f"{ACTIVATIONS}/residual/other_positions/kurtosis", 0),
    LONG_WINDOWS,
)


def effects():
    """Returns the table of the main effect of each part of Lazy Attention and of the interactions between two parts.
    Each effect is a difference of two means: the mean over the models that lack an even number of the parts, minus the
    mean over the models that lack an odd number of them."""
    columns = {}
    for parts in ([0], [1], [2], [0, 1], [0, 2], [1, 2]):
        groups = ([], [])
        for levels, model in FACTORS.items():
            groups[sum(1 - levels[part] for part in parts) % 2].append(model)
        columns[" x ".join(PARTS[part] for part in parts)] = [tuple(group) for group in groups]
    return text.measures_by_columns("", EFFECTS, columns)


def precision():
    """Returns the table of two effects on the loss: fp8 instead of bf16 matrix products, and attention gradients that
    are computed from exact instead of 16-bit sums."""
    softmax = LOSS.of("softmax@200").combine_first(LOSS.of("B.softmax"))  # the two have different seeds
    pairs = {
        "softmax: fp8 instead of bf16 matrix products": (softmax, LOSS.of("softmax-fp8@200")),
        "Lazy: attention gradients from exact instead of 16-bit sums": (LOSS.of("B.lazy"), LOSS.of("lazy-exact@200")),
    }
    found = {title: statistics.student_interval((new - old).dropna()) for title, (old, new) in pairs.items()}
    rows = [[title, text.estimate(change, 4, signed=True), change.count] for title, change in found.items()]
    return text.table(["change", LOSS.title, "seeds"], rows)


def runs():
    """Returns the table of all trainings of the protocol."""
    losses = [measure._replace(digits=4) for measure in (LOSS, *data.OTHER_TEXT[1:3])]
    measures = (*losses, RATIO, EXCESS, DENSITY, ALIVE)
    rows = [
        [record["cell"], seed, f"{record['tokens'] / 1e6:.0f}M"]
        + [text.number(measure.of(model)[seed], measure.digits) for measure in measures]
        + [record["block"]]
        for model, seeds in data.trainings().items()
        for seed, record in seeds.items()
        if "block" in record
    ]
    return text.table(["model", "seed", "tokens", *(m.title for m in measures), "block of the protocol"], rows)
