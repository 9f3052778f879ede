"""Recipes of further checks: components of Lazy Attention, RoPE base, initial offsets, precision, text from other
domains, KV caches, and time."""

from ..published import TABLE2
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
    mean_at,
    model_measurement,
    sink_columns,
)
from .figures import RISE, with_lengths

BASES = (10000, 50000, 150000, 1000000)
STARTS = (-2, -1.5, -1, -0.5, 0)
DOMAINS = "domains"  # measurement kind: loss and attention sink on the text folders of --domain


def precision_models(scale):
    models = [SOFTMAX, lazy_model(scale), lazy_model(scale, "lazy-exact", training__deterministic=True)]
    # fp8 needs a GPU of compute capability 8.9 or later.
    return models + ([] if scale.name == "tiny" else [Model("softmax-fp8", {"training.precision": "fp8"})])


def latency(scale):
    sizes = {"tiny": (1, "fp32", 1), "small": (8, "bf16", 64)}.get(scale.name, (4, "bf16", 64))
    batch, dtype, factor = sizes
    lengths = [scale.context * 4**n for n in range(4) if 4**n <= factor]
    settings = {"lengths": lengths, "texts": 2, "rounds": 5, "decoded": 16, "batch": batch, "dtype": dtype}
    return Measurement("model_latency", settings, ("lazy",), ("softmax-base150k",))


def latency_columns(scale):
    columns = []
    for length in latency(scale).settings["lengths"]:
        for what in ("prefill_ms", "decode_ms"):
            for form in ("as trained", "all alive", "one pass", "softmax-base150k"):

                def value(measured, path=(form, str(length), what, "median")):
                    found = measured["model_latency"]
                    for key in path:
                        found = found[key]
                    return found

                columns.append(Column(f"{what.removesuffix('_ms')} at {length}, {form}, ms", value))
    return columns


def added_loss(cache):
    return lambda measured: mean_at(measured, f"streaming {cache}") - mean_at(measured, "streaming full")


def domain_value(key):
    """Returns a function that computes the mean of the quantity `key` over the text folders of --domain."""
    return lambda measured: sum(found[key] for found in measured[DOMAINS].values()) / len(measured[DOMAINS])


def ablation_columns(scale):
    paper = ({name: TABLE2[name][index] for name in ("softmax", "elastic")} for index in range(3))
    loss, density, sink = paper
    return [loss_column(paper=loss), *sink_columns(density, sink)]


RECIPES = [
    Recipe(
        "ablation",
        "the effect of each component",
        "further check; paper, Table 2",
        lambda scale: [
            SOFTMAX,
            ELASTIC,
            Model("softmax-bias-base150k", {"model.distance_bias_window": scale.window, "model.rope_theta": 150000}),
            lazy_model(scale),
        ],
        lambda scale: [model_measurement(scale, "heldout", "sinks")],
        ablation_columns,
        tuple(
            Difference(f"Effect of {what} on the loss", "held-out loss", over, under, True)
            for what, over, under in (
                ("the normalizer alone", "elastic", "softmax"),
                ("bias and base alone", "softmax-bias-base150k", "softmax"),
                ("all components", "lazy", "softmax"),
            )
        ),
    ),
    Recipe(
        "parity",
        "Lazy and softmax models that are equal except for the attention",
        "further check",
        lambda scale: [lazy_model(scale), SOFTMAX_BASE, SOFTMAX],
        lambda scale: [model_measurement(scale, "heldout", "sinks")],
        lambda scale: [loss_column(), *sink_columns()],
        (Difference("Is the loss of Lazy lower?", "held-out loss", "lazy", "softmax-base150k", True),),
    ),
    Recipe(
        "rope-base",
        "sensitivity to the RoPE base",
        "further check; paper, section 4.1",
        lambda scale: [
            *(lazy_model(scale, f"lazy-base{base}", model__rope_theta=base) for base in BASES),
            *(Model(f"softmax-base{base}", {"model.rope_theta": base}) for base in BASES),
        ],
        lambda scale: [model_measurement(scale, "sinks"), with_lengths(scale, 1, 4)],
        lambda scale: [loss_column(), *sink_columns(), RISE],
        tuple(
            Difference(f"Lazy against softmax, base {base}", "held-out loss", f"lazy-base{base}", f"softmax-base{base}")
            for base in BASES
        ),
    ),
    Recipe(
        "tau-init",
        "initial value of the offset from -2 to 0",
        "further check; paper, Table 2",
        lambda scale: [
            Model(f"tau{start}", {"model.normalizer": "elastic", "model.offset_init": start}) for start in STARTS
        ],
        lambda scale: [model_measurement(scale, "heldout", "sinks")],
        lambda scale: [loss_column(), *sink_columns()],
        tuple(
            Difference(f"Start at {start} against -1", "held-out loss", f"tau{start}", "tau-1")
            for start in STARTS
            if start != -1
        ),
    ),
    Recipe(
        "precision",
        "cost of fp8 matrix products and of 16-bit attention gradients",
        "further check",
        precision_models,
        lambda scale: [model_measurement(scale, "heldout")],
        lambda scale: [loss_column(digits=4)],
        (
            Difference("Cost of fp8", "held-out loss", "softmax-fp8", "softmax", True),
            Difference("Cost of 16-bit gradients", "held-out loss", "lazy", "lazy-exact", True),
        ),
    ),
    Recipe(
        "cross-domain",
        "loss and sink on code, scientific and multilingual text",
        "further check",
        lambda scale: [lazy_model(scale), SOFTMAX_BASE],
        lambda scale: [Measurement(DOMAINS)],
        lambda scale: [
            Column("loss, mean over --domain", domain_value("loss")),
            Column("sink ratio, %", domain_value("sink_ratio"), 100, 2),
        ],
        (Difference("Is the loss of Lazy lower?", "loss, mean over --domain", "lazy", "softmax-base150k", True),),
    ),
    Recipe(
        "streaming",
        "long text with all keys, with a window, and with the window and the first four keys",
        "further check; StreamingLLM",
        lambda scale: [lazy_model(scale), SOFTMAX_BASE],
        lambda scale: [Measurement("streaming")],
        lambda scale: [
            Column("loss, all keys", "streaming full"),
            Column("added by a window", added_loss("window")),
            Column("added by the window with the first four keys", added_loss("first")),
        ],
        (Difference("Does a window cost Lazy less?", "added by a window", "lazy", "softmax-base150k", True),),
        ("Only tokens beyond the first window count.",),
    ),
    Recipe(
        "latency",
        "time of the second pass of Elastic-Softmax over the keys",
        "paper, appendix F",
        lambda scale: [lazy_model(scale), SOFTMAX_BASE],
        lambda scale: [latency(scale)],
        latency_columns,
        notes=(
            "The machine must be idle otherwise. All alive: offsets of 0. One pass: the same weights with softmax.",
        ),
    ),
]
