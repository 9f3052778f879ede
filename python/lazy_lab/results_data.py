"""Tidy tables of the records: `frame(study)` returns a pandas frame with one row per number.

| column | content |
|---|---|
| file | name of the record |
| block | block of the protocol, or the kind of the step: train, heldout, lengths, sinks, tasks, study |
| model, seed | cell of the protocol, or model of a recipe; seeds count from 1 |
| tokens | tokens of the whole training |
| trained | tokens trained before the measurement: less than `tokens` in curves and snapshots |
| measure | path in the record without the keys that became columns |
| bos | "bos" or "no_bos": whether every window begins with BOS; "" for other measures |
| variant | of VARIANTS, also two such as post_hoc.first_position; the cache of a task, such as streaming:4+60; or "" |
| length | T in tokens: length of samples, windows or prompts, or the number of keys of a cache |
| layer | layer; for states of the residual stream, 0 is before the first layer |
| position | first position of a range of positions |
| value | nats per token or word, a fraction between 0 and 1, or the unit that the measure names |

| measures of the protocol | columns that distinguish their rows |
|---|---|
| heldout.loss | variant |
| wikitext.loss_per_token, wikitext.loss_per_word | bos |
| lambada.loss_per_token, .loss_per_word, .last_word_loss, .last_word_accuracy | bos |
| sinks.sink_ratio, .excess, .excess_at_offsets, .uniform, .density | length, bos, layer (NaN: all layers), variant |
| sinks.sink_1, sinks.released_mass, sinks.alive_fraction | length, bos, layer (NaN: all layers), variant |
| snapshots.heldout.loss (1M tokens of the split), snapshots.sinks.sink_ratio, ... | trained, length, bos, layer |
| lengths.loss, lengths.by_position | length, variant, position |
| activations.collapse.cosine, .effective_rank | layer, variant |
| activations.residual.kurtosis, .rms, .largest | layer, variant |
| activations.keys.first_key, .next_keys, .entropy | layer, variant |
| training.loss, .gradient_norm, .validation.loss, .attention.sink_ratio, ... | trained |

The measures of a step begin with its kind or study: heldout.loss, lengths.wikitext, sinks.sink_ratio,
tasks.piqa.acc.value, cache.caches.streaming:0+64.loss, quantization.formats.w4a4, speed.softmax.train_ms.median. A list
that is not by layer, such as one loss per text, counts by its mean. Values by head and distance (learned offsets and
distance biases) are not in the table; they are in the records under `learned`.
"""

import math
import re

import numpy as np

from .errors import UserError
from .records import STUDIES, read

COLUMNS = "file block model seed tokens trained measure bos variant length layer position value".split()
BOS = {"bos": "bos", "bos_every_window": "bos", "no_bos": "no_bos"}
VARIANTS = ("post_hoc", "other_rope_base", "first_position", "other_positions")
BY_LAYER = ("by_head", "by_layer", "collapse", "activations")
# Keys without a result: sizes and settings of a measurement, values by group of texts, and attention maps.
SKIPPED = """alibi_slopes by_group distance_bias learned map mean_weight n next_keys_are positions quartiles rope_base
    samples seconds sequences stderr tau texts tokens tokens_each words""".split()
SEED = re.compile(r"\.seed(\d+)")


def rows(value, row, path=()):
    """Yields a dictionary of columns for every number of a JSON value, based on the columns `row` known so far."""
    if isinstance(value, bool) or not isinstance(value, (dict, list, int, float)):
        return
    if isinstance(value, dict):
        yield from rows_of_object(value, row, path)
    elif not isinstance(value, list):
        yield row | {"measure": ".".join(path), "value": float(value)}
    elif any(key in path for key in BY_LAYER) or (value and isinstance(value[0], dict)):
        path = tuple(key for key in path if key not in ("by_head", "by_layer"))
        for layer, item in enumerate(value):
            item = float(np.mean(item)) if isinstance(item, list) else item
            yield from rows(item, row | {"layer": layer}, path)
    elif value:
        yield row | {"measure": ".".join(path), "value": float(np.mean(value))}


def rows_of_object(value, row, path):
    """Yields the rows of a JSON object. A list of `tokens` makes the other lists curves over the tokens trained, and
    `positions` are the first positions of the values in `by_position`."""
    curve = value["tokens"] if isinstance(value.get("tokens"), list) else None
    for key, item in value.items():
        if key in SKIPPED:
            continue
        if isinstance(item, list) and (curve is not None or key == "by_position"):
            column = "position" if curve is None else "trained"
            for point, number in zip(value["positions"] if curve is None else curve, item):
                yield row | {column: point, "measure": ".".join((*path, key)), "value": float(number)}
        elif key.isdigit():
            yield from rows(item, row | {"length": int(key)}, path)
        elif key in BOS:
            yield from rows(item, row | {"bos": BOS[key]}, path)
        elif key in VARIANTS:
            variant = f"{row['variant']}.{key}" if row.get("variant") else key
            yield from rows(item, row | {"variant": variant}, path)
        else:
            yield from rows(item, row, (*path, key))


def rows_of_training(record):
    """Yields the rows of a record of the protocol."""
    row = {"block": record["block"], "model": record["cell"]}
    row |= {name: record[name] for name in ("file", "seed", "tokens")} | {"trained": record["tokens"]}
    yield from rows({name: record[name] for name in ("parameters", "tokens_per_second", "training")}, row)
    yield from rows(record["measures"], row)
    for snapshot in record.get("snapshots", []):
        yield from rows(snapshot, row | {"trained": snapshot["tokens"]}, ("snapshots",))


def rows_of_step(record, tokens):
    """Yields the rows of a step. tokens: {overrides of the configuration: tokens} of the recorded trainings."""
    name = record["model"] or record["step"]
    seed = SEED.search(name)
    training = next(iter(record["inputs"]["trainings"]), {"overrides": []})
    trained = tokens.get(tuple(training["overrides"]), max(tokens.values()))
    row = {"file": record["file"], "block": record["kind"], "model": SEED.sub("", name)}
    row |= {"seed": int(seed[1]) if seed else 1, "tokens": trained, "trained": trained}
    if cache := record["settings"].get("cache"):
        row["variant"] = cache
    yield from rows(record["values"], row, (record["settings"].get("study", record["kind"]),))


def frame(study):
    """Returns the table of a study of records.STUDIES, with the columns and measures of the module's description."""
    import pandas

    if study not in STUDIES:
        raise UserError(f"expected a study ({' or '.join(STUDIES)}), found {study}")
    found = read(study)
    tokens = {
        tuple(record["settings"]["overrides"]): record["values"]["tokens"]
        for record in found
        if record.get("kind") == "train"
    }
    rows_of = rows_of_training if study == "evidence" else lambda record: rows_of_step(record, tokens)
    base = {"bos": "", "variant": ""}
    return pandas.DataFrame([base | row for record in found for row in rows_of(record)], columns=COLUMNS)


def by_seed(table, **conditions):
    """Returns {seed: value} of the rows with the given column values, for the statistics of statistics.py.

    A list accepts each of its values. If a seed has several rows (several models or layers), their mean counts. Without
    a condition on `length`, `layer` or `position`, only rows without that column are used, without one on `bos` or
    `variant` only rows in which it is "", and without one on `trained` only measurements after the training.
    Example: by_seed(frame("evidence"), block="B", model=["elastic", "lazy"], measure="heldout.loss")."""
    expected = dict.fromkeys(("length", "layer", "position"), math.nan) | {"bos": "", "variant": ""} | conditions
    for column, accepted in expected.items():
        table = table[table[column].isin(accepted if isinstance(accepted, list) else [accepted])]
    if "trained" not in conditions:
        table = table[table["trained"] == table["tokens"]]
    return {int(seed): float(value) for seed, value in table.groupby("seed")["value"].mean().items()}
