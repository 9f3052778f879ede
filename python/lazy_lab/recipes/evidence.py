"""The recipes of the evidence protocol, one per block of configs/evidence.toml. The blocks were fixed before the runs.

A cell of a block is one model. Seed k sets training.seed = 41 + k for every cell, so models are compared by seed.
"""

import math
from functools import cache

import numpy as np
import tomllib

from ..configurations import folder
from . import Column, Difference, Measurement, Model, Recipe, line_chart, loss_column, sink_columns
from .figures import RISE


@cache
def protocol():
    return tomllib.loads((folder() / "evidence.toml").read_text(encoding="utf-8"))


def blocks():
    return protocol()["protocol"]["blocks"]


def parsed(overrides):
    """Converts overrides of the form "section.key=value" to a dict."""
    out = {}
    for item in overrides:
        key, value = item.split("=", 1)
        try:
            out[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:  # the value is not TOML: a string without quotes
            out[key] = value
    return out


def block_models(name, scale):
    """Returns the models of a block. At tiny scale, the protocol's overrides of model size and training length are not
    applied."""
    block, sizes = protocol()[name], protocol()["protocol"]
    small = scale.name == "small"
    own = parsed(sizes["overrides"] + block.get("overrides", [])) if small else {}
    own.pop("model.kind", None)
    if small:
        batch = own.get("training.global_batch_tokens", 131072)
        own["training.steps"] = math.ceil(block["tokens"] / batch)
        validation = max(1, round(sizes["validation_tokens"] / batch))
        own |= {"validation.every": validation, "metrics.attention_every": validation, "metrics.log_every": 1}
        if every := block.get("snapshot_every"):
            own |= {"checkpoint.every": round(every / batch), "checkpoint.export": "every"}
    models = []
    for cell in block["cells"]:
        overrides = parsed(protocol()["cells"][cell])
        if not small and overrides.get("model.distance_bias_window"):
            overrides["model.distance_bias_window"] = scale.window
        models.append(Model(cell, own | overrides))
    return models


def block_measurements(name, scale):
    settings = dict(scale.settings)
    if scale.name == "small":
        names = [key for key in protocol()["measures"] if key != "snapshot_tokens"]
        settings |= {key: protocol()["measures"][key] for key in names}
    own = parsed(protocol()[name].get("overrides", []))
    for key in ("bos_per_sequence", "bos_per_document", "eos_per_document"):
        settings[key] = own.get(f"data.{key}", settings[key])
    parts = ["heldout", "sinks", "lengths", "activations", "learned", "other_rope_base", "post_hoc"]
    return [
        Measurement("model", settings | {"parts": parts}),
        Measurement("model", settings | {"parts": ["wikitext", "lambada"]}, needs_data=True),
    ]


def block_columns(scale):
    return [
        loss_column(),
        *sink_columns(),
        RISE,
        Column("WikiText, nats per token, BOS", "model wikitext bos_every_window loss_per_token"),
        Column("WikiText, nats per token, no BOS", "model wikitext no_bos loss_per_token"),
        Column("LAMBADA, last word, %", "model lambada bos_every_window last_word_accuracy", 100, 2),
    ]


def draw_sinks(results):
    """Draws the sink ratio (mean over heads and seeds) by layer, one line per model of the block."""
    series = []
    for name in results.models:
        found = [values["model"]["sinks"] for values in results.values(name) if "model" in values]
        ways = [values[max(values, key=int)] for values in found]
        ratios = [(way.get("bos") or way["no_bos"])["by_head"]["sink_ratio"] for way in ways]  # [seed][layer][head]
        by_layer = 100 * np.mean(ratios, axis=(0, 2)) if ratios else []
        series.append((name, np.arange(1, len(by_layer) + 1), by_layer))
    return line_chart(series, "layer", "weight on the first key, %")


def block_differences(name):
    cells = protocol()[name]["cells"]
    base = "softmax" if "softmax" in cells else None
    return tuple(
        Difference(f"{cell} against softmax: {column}", column, cell, base, cell in ("elastic", "lazy"))
        for cell in cells
        if base and cell != base
        for column in ("held-out loss", "excess sink, points")
    )


RECIPES = [
    Recipe(
        f"evidence-{name}",
        protocol()[name]["question"],
        "the evidence protocol, configs/evidence.toml",
        lambda scale, name=name: block_models(name, scale),
        lambda scale, name=name: block_measurements(name, scale),
        block_columns,
        block_differences(name),
        draw=draw_sinks,
    )
    for name in blocks()
]
