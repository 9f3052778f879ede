"""The recipes of the evidence protocol, one per block of configs/evidence.toml. The blocks were fixed before the runs.

A cell of a block is one model. Seed k sets training.seed = 41 + k for every cell, so models are compared by seed.
"""

import math
from functools import cache

import numpy as np
import tomllib

from .common import EXCESS, LOSS, LOSS_AND_SINKS, line_chart
from .figures import rise
from .recipe import Column, Difference, Model, Recipe, at_largest_length
from .scales import configurations


@cache
def protocol():
    return tomllib.loads((configurations() / "evidence.toml").read_text(encoding="utf-8"))


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


def small_overrides(block):
    """Returns the overrides of model size and training length at small scale."""
    sizes = protocol()["protocol"]
    own = parsed(sizes["overrides"] + block.get("overrides", []))
    del own["model.kind"]
    batch = own.get("training.global_batch_tokens", 131072)
    validation = max(1, round(sizes["validation_tokens"] / batch))
    own |= {"training.steps": math.ceil(block["tokens"] / batch)}
    own |= {"validation.every": validation, "metrics.attention_every": validation, "metrics.log_every": 1}
    if every := block.get("snapshot_every"):
        own |= {"checkpoint.every": round(every / batch), "checkpoint.export": "every"}
    return own


def block_models(block, scale):
    models = []
    for cell in block["cells"]:
        overrides = parsed(protocol()["cells"][cell])
        if scale.name == "small":
            overrides = small_overrides(block) | overrides
        elif "model.distance_bias_window" in overrides:
            overrides["model.distance_bias_window"] = scale.window
        models.append(Model(cell, overrides))
    return models


def block_measurements(block, scale):
    parts = ("heldout", "sinks", "lengths", "activations", "learned", "other_rope_base", "post_hoc")
    found = [scale.measure(*parts), scale.measure("wikitext", "lambada", needs_data=True)]
    packing = {key.removeprefix("data."): value for key, value in parsed(block.get("overrides", [])).items()}
    for measurement in found:
        if scale.name == "small":
            measurement.settings |= protocol()["measures"]
            del measurement.settings["snapshot_tokens"]
        measurement.settings |= {key: packing[key] for key in measurement.settings.keys() & packing.keys()}
    return found


def draw_sinks(results):
    """Draws the sink ratio (mean over heads and seeds) by layer, one line per model of the block."""
    series = []
    for name in results.models:
        by_head = results.read(name, "model/sinks", at_largest_length("by_head"))
        ratios = [found["sink_ratio"] for found in by_head]  # [seed][layer][head]
        by_layer = 100 * np.mean(ratios, axis=(0, 2)) if ratios else []
        series.append((name, np.arange(1, len(by_layer) + 1), by_layer))
    return line_chart(series, "layer", "weight on the first key, %")


def recipes(scale):
    columns = [
        *LOSS_AND_SINKS,
        rise(scale, 4),
        Column("WikiText, nats per token, BOS", "model/wikitext/bos_every_window/loss_per_token"),
        Column("WikiText, nats per token, no BOS", "model/wikitext/no_bos/loss_per_token"),
        Column("LAMBADA, last word, %", "model/lambada/bos_every_window/last_word_accuracy", 100, 2),
    ]
    found = []
    for name in protocol()["protocol"]["blocks"]:
        block = protocol()[name]
        differences = [
            Difference(f"{cell} against softmax: {column.title}", column, cell, "softmax", cell in ("elastic", "lazy"))
            for cell in block["cells"]
            if "softmax" in block["cells"] and cell != "softmax"
            for column in (LOSS, EXCESS)
        ]
        found.append(
            Recipe(
                f"evidence-{name}",
                block["question"],
                "the evidence protocol, configs/evidence.toml",
                block_models(block, scale),
                block_measurements(block, scale),
                columns,
                differences,
                draw=draw_sinks,
            )
        )
    return found
