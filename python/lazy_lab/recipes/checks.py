"""Recipes of further checks: other mechanisms against attention sinks, components of Lazy Attention, RoPE base, initial
offsets, precision, text from other domains, KV caches, and time.

The other mechanisms are gated attention (arXiv 2505.06708), off-by-one softmax, Softpick (arXiv 2504.20966) and learned
sinks (gpt-oss). All models are trained by the same program."""

from .common import ELASTIC, EXCESS, LOSS, LOSS_AND_SINKS, SOFTMAX, SOFTMAX_BASE, TABLE2_COLUMNS, line_chart
from .figures import rise
from .recipe import Column, Difference, Measurement, Model, Recipe, at_largest_length

OTHERS = [
    Model("gated", {"model.attention_gate": "head"}),
    Model("off-by-one", {"model.normalizer": "softmax_sink", "model.sink_trainable": False}),
    Model("softpick", {"model.normalizer": "softpick"}),
    Model("learned-sink", {"model.normalizer": "softmax_sink"}),
]
FORMATS = ["w8a8", "w8a8:tensor", "w4a4", "kv8", "kv4", "kv4:channel"]


def draw_rivals(results):
    """Draws the held-out loss against the excess sink of every model, with one point per seed."""
    series = []
    for name in results.models:
        points = results.by_seed(name, lambda measured: (EXCESS(measured), LOSS(measured))).values()
        series.append((name, [x for x, _ in points], [y for _, y in points]))
    return line_chart(series, "excess sink, percentage points", "held-out loss, nats per token", line="")


def rivals(scale):
    context = scale.context
    models = [SOFTMAX, ELASTIC, scale.lazy(), *OTHERS]
    # The texts have twice the training length, and only the tokens after the training length are counted. There are
    # three kinds of caches, each with the sizes 1/8, 1/4 and 1/2 of the training length.
    caches = [
        cache
        for size in (context // 8, context // 4, context // 2)
        for cache in (f"streaming:0+{size}", f"streaming:4+{size - 4}", f"heaviest:{size // 2}+{size // 2}")
    ]
    cache_settings = {"texts": 8, "length": 2 * context, "counted_from": context, "read_texts": 2, "decoded": 8}
    cache_settings |= {"read_at": [context // 8 * 2**n for n in range(5)], "caches": caches}
    speed_settings = {"rounds": 9, "batch": 8, "dtype": "bf16", "train_tokens": 32768}
    if scale.name == "tiny":
        speed_settings = {"rounds": 3, "batch": 1, "dtype": "fp32", "train_tokens": 1024}
    speed_settings |= {"lengths": [context, 4 * context], "texts": 2, "decoded": 16}

    outliers = Measurement("outliers", {"texts": 16, "length": 512})
    quantization = Measurement("quantization", {"texts": 32, "length": 512, "formats": FORMATS})
    cache = Measurement("cache", cache_settings)
    speed = Measurement("speed", speed_settings, baselines=("softmax",))

    kurtosis = Column("kurtosis of the residual stream", "outliers/places/residual/kurtosis", 1, 1)
    # The loss with a low-bit format or a shortened KV cache minus the loss without it.
    format_columns = {
        name: Column(f"loss added by {name}", f"quantization/formats/{name}", digits=4, minus="quantization/full")
        for name in FORMATS
    }
    cache_columns = {
        name: Column(f"loss added by {name}", f"cache/caches/{name}/loss", minus="cache/full") for name in caches
    }
    # Times are divided by the time of the softmax model, which was timed alternately.
    time_columns = [
        Column(
            f"time of a {step} step / softmax",
            f"speed/as trained/{length}/{key}/median",
            digits=2,
            over=f"speed/softmax/{length}/{key}/median",
        )
        for step, key, length in (("training", "train_ms", context), ("decode", "decode_ms", 4 * context))
    ]

    def each(question, column):
        return [Difference(question.format(m.name), column, m.name, "softmax", True) for m in models if m != SOFTMAX]

    return [
        Recipe(
            "rivals",
            "other mechanisms against attention sinks",
            "further check: arXiv 2505.06708, 2504.20966, gpt-oss, off-by-one softmax",
            models,
            [scale.measure("heldout", "sinks"), outliers, quantization, cache, speed],
            [
                *LOSS_AND_SINKS,
                Column("Sink_1^0.3, % of heads", "model/sinks", 100, 1, at_largest_length("sink_1")),
                kurtosis,
                format_columns["w4a4"],
                format_columns["kv4"],
                cache_columns[f"heaviest:{context // 8}+{context // 8}"],
                *time_columns,
            ],
            each("Is the loss of {} below the loss of softmax?", LOSS) + each("Is the sink of {} smaller?", EXCESS),
            ["All models have the same number of parameters, except for the gates."],
            draw_rivals,
        ),
        Recipe(
            "outliers",
            "activation outliers of models with and without sinks",
            "further check",
            models,
            [outliers],
            [
                kurtosis,
                Column("kurtosis of the MLP's last input", "outliers/places/mlp.inner/kurtosis", 1, 1),
                Column("largest / median of the residual stream", "outliers/places/residual/ratio", 1, 1),
            ],
            each("Is the kurtosis of {} smaller?", kurtosis),
            ["The first position is excluded from the kurtosis."],
        ),
        Recipe(
            "quantization",
            "loss added by low-bit formats",
            "further check",
            models,
            [quantization],
            list(format_columns.values()),
            each("Does w4a4 cost {} less?", format_columns["w4a4"]),
        ),
        Recipe(
            "cache",
            "loss added by small caches",
            "further check",
            models,
            [cache],
            list(cache_columns.values()),
            notes=["Texts have twice the training length; only tokens beyond the training length count."],
        ),
        Recipe(
            "speed",
            "time of training and decoding compared with softmax",
            "further check",
            models,
            [speed],
            time_columns,
            notes=["The machine must be idle otherwise. Softmax compared with itself shows the noise."],
        ),
    ]


BASES = (10000, 50000, 150000, 1000000)
STARTS = (-2, -1.5, -1, -0.5, 0)


def recipes(scale):
    losses_and_sinks = [scale.measure("heldout", "sinks")]
    pair = [scale.lazy(), SOFTMAX_BASE]
    exact_loss = Column(LOSS.title, LOSS.path, digits=4)
    domain_loss = Column("loss, mean over --domain", "domains/*/loss")
    added_by_window = Column("added by a window", "streaming/window", minus="streaming/full")
    batch, dtype = {"tiny": (1, "fp32"), "small": (8, "bf16"), "paper": (4, "bf16")}[scale.name]
    lengths = [factor * scale.context for factor in ((1,) if scale.name == "tiny" else (1, 4, 16, 64))]
    latency = {"lengths": lengths, "texts": 2, "rounds": 5, "decoded": 16, "batch": batch, "dtype": dtype}
    # fp8 needs a GPU of compute capability 8.9 or later.
    fp8 = [Model("softmax-fp8", {"training.precision": "fp8"})] if scale.name != "tiny" else []
    return rivals(scale) + [
        Recipe(
            "ablation",
            "the effect of each component",
            "further check; paper, Table 2",
            [
                SOFTMAX,
                ELASTIC,
                Model("softmax-bias-base150k", SOFTMAX_BASE.overrides | {"model.distance_bias_window": scale.window}),
                scale.lazy(),
            ],
            losses_and_sinks,
            TABLE2_COLUMNS,
            [
                Difference("Effect of the normalizer alone on the loss", LOSS, "elastic", "softmax", True),
                Difference("Effect of bias and base alone on the loss", LOSS, "softmax-bias-base150k", "softmax", True),
                Difference("Effect of all components on the loss", LOSS, "lazy", "softmax", True),
            ],
        ),
        Recipe(
            "parity",
            "Lazy and softmax models that are equal except for the attention",
            "further check",
            [*pair, SOFTMAX],
            losses_and_sinks,
            LOSS_AND_SINKS,
            [Difference("Is the loss of Lazy lower?", LOSS, "lazy", "softmax-base150k", True)],
        ),
        Recipe(
            "rope-base",
            "sensitivity to the RoPE base",
            "further check; paper, section 4.1",
            [scale.lazy(f"lazy-base{base}", {"model.rope_theta": base}) for base in BASES]
            + [Model(f"softmax-base{base}", {"model.rope_theta": base}) for base in BASES],
            [scale.measure("sinks"), scale.measure_lengths(1, 4)],
            [*LOSS_AND_SINKS, rise(scale, 4)],
            [
                Difference(f"Lazy against softmax, base {base}", LOSS, f"lazy-base{base}", f"softmax-base{base}")
                for base in BASES
            ],
        ),
        Recipe(
            "tau-init",
            "initial value of the offset from -2 to 0",
            "further check; paper, Table 2",
            [Model(f"tau{start}", ELASTIC.overrides | {"model.offset_init": start}) for start in STARTS],
            losses_and_sinks,
            LOSS_AND_SINKS,
            [
                Difference(f"Start at {start} against -1", LOSS, f"tau{start}", "tau-1")
                for start in STARTS
                if start != -1
            ],
        ),
        Recipe(
            "precision",
            "cost of fp8 matrix products and of 16-bit attention gradients",
            "further check",
            [SOFTMAX, scale.lazy(), scale.lazy("lazy-exact", {"training.deterministic": True}), *fp8],
            [scale.measure("heldout")],
            [exact_loss],
            [
                Difference("Cost of fp8", exact_loss, "softmax-fp8", "softmax", True),
                Difference("Cost of 16-bit gradients", exact_loss, "lazy", "lazy-exact", True),
            ],
        ),
        Recipe(
            "cross-domain",
            "loss and sink on code, scientific and multilingual text",
            "further check",
            pair,
            [Measurement("domains")],
            [domain_loss, Column("sink ratio, %", "domains/*/sink_ratio", 100, 2)],
            [Difference("Is the loss of Lazy lower?", domain_loss, "lazy", "softmax-base150k", True)],
        ),
        Recipe(
            "streaming",
            "long text with all keys, with a window, and with the window and the first four keys",
            "further check; StreamingLLM",
            pair,
            [Measurement("streaming")],
            [
                Column("loss, all keys", "streaming/full"),
                added_by_window,
                Column("added by the window with the first four keys", "streaming/first", minus="streaming/full"),
            ],
            [
                Difference(
                    "Does a window increase the loss of Lazy less than the loss of softmax?",
                    added_by_window,
                    "lazy",
                    "softmax-base150k",
                    True,
                )
            ],
            ["Only tokens beyond the first window count."],
        ),
        Recipe(
            "latency",
            "time of the second pass of Elastic-Softmax over the keys",
            "paper, appendix F",
            pair,
            [Measurement("model_latency", latency, ("lazy",), ("softmax-base150k",))],
            [
                Column(f"{what} at {length}, {form}, ms", f"model_latency/{form}/{length}/{what}_ms/median")
                for length in lengths
                for what in ("prefill", "decode")
                for form in ("as trained", "all alive", "one pass", "softmax-base150k")
            ],
            notes=[
                "The machine must be idle otherwise. All alive: offsets of 0. One pass: the same weights with softmax."
            ],
        ),
    ]
