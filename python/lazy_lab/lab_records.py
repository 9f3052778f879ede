"""Recorded results: `lazy lab --scale small` uses the results in docs/results/records and does not compute them again.

A recorded training is found by its configuration. Options that do not change the model are ignored in the search."""

from . import records
from .recipes.evidence import parsed

# Configuration key -> value that the training has if no override sets the key.
DEFAULTS = {
    "model.kind": "transformer",
    "model.normalizer": "softmax",
    "model.offset_init": -1,
    "model.distance_bias_window": 0,
    "model.rope_theta": 10000,
    "training.steps": 1526,
    "optimizer.lr": 3e-3,
}
LAZY = {"model.normalizer": "elastic", "model.rope_theta": 150000}  # keys that the model kind "lazy" sets
WITHOUT_EFFECT = ("validation.", "checkpoint.", "metrics.")
RECORD_PARTS = ("heldout", "wikitext", "lambada", "sinks", "lengths", "activations", "learned")
RECORD_PARTS += ("other_rope_base", "post_hoc")
RENAMED = {"softmax-rope150k": "softmax-base150k"}  # names of baselines in older records


def identity(files, overrides, ignore=()):
    """Returns (key, seed). The key is derived from the whole configuration of a training except its seed."""
    found = dict(overrides)
    if found.get("model.kind") == "lazy":
        found = LAZY | found | {"model.kind": "transformer"}
    seed = found.pop("training.seed", 42) - 41
    kept = {
        key: value
        for key, value in found.items()
        if not key.startswith(WITHOUT_EFFECT) and DEFAULTS.get(key) != value and key not in ignore
    }
    return (tuple(files), tuple(sorted((key, str(value)) for key, value in kept.items()))), seed


def mean(values):
    return sum(values) / len(values)


def model_parts(kind, record):
    """Converts the values of a recorded step to the output format of `lazy measure model`. A recorded step has lists
    with one number per text, of which this function returns the means."""
    values, settings = record["values"], record["settings"]
    if kind == "heldout":
        return {"heldout": {"loss": mean(values["loss"])}}
    if kind == "sinks":
        found = {key: mean(value) for key, value in values.items() if isinstance(value, list)}
        if "elastic" not in str(record["inputs"]["trainings"]) and "excess" in found:
            found["excess_at_offsets"] = found["excess"]
        return {"sinks": {"512": {"bos" if settings["bos"] else "no_bos": found}}}
    if kind == "lengths":
        losses = {length: {"loss": mean(loss)} for length, loss in values["heldout"].items()}
        collapse = {
            length: {key: mean(found[key]) for key in found} for length, found in values.get("collapse", {}).items()
        }
        return {"lengths": {"bos_every_window": losses}, "collapse_by_length": collapse}
    if "distance_bias" in values:
        bias = values["distance_bias"]
        distances = [[distance, distance] for distance in range(len(bias[0][0]))]
        values = values | {"distance_bias": {"window": len(distances), "distances": distances, "bias": bias}}
    return {"learned": values}


class Recorded:
    """Finds the results in docs/results/records by the configuration and the seed of the training."""

    def __init__(self):
        from .lab_steps import merge

        self.found = {}  # (result of identity(), seed) -> {kind of measurement: values}
        self.settings = {}  # (identity, seed, kind) -> recorded settings
        self.protocol = set()
        for record in records.read("evidence"):
            overrides = parsed(record["overrides"]) | {"training.steps": record["steps"]}
            key = identity(["sink-55m.toml"], overrides)
            self.found[key] = {"model": dict(record["measures"])}
            self.protocol.add(key)
        for record in records.read("steps"):
            trainings = record["inputs"]["trainings"]
            if not trainings or "overrides" not in trainings[0] or record["kind"] == "train":
                continue
            key = identity(trainings[0]["extends"], parsed(trainings[0]["overrides"]))
            values = self.found.setdefault(key, {})
            kind = record["settings"].get("study", record["kind"])
            if kind in ("heldout", "sinks", "lengths", "learned"):
                for part, found in model_parts(kind, record).items():
                    if key not in self.protocol or part == "collapse_by_length":
                        merge(values.setdefault("model", {}), {part: found})
            elif kind == "tasks":
                tasks = {
                    task: {metric: found["value"] for metric, found in metrics.items()}
                    for task, metrics in record["values"].items()
                }
                merge(values.setdefault("tasks", {}), tasks)
            else:
                values[kind] = {RENAMED.get(name, name): found for name, found in record["values"].items()}
                self.settings[(*key, kind)] = record["settings"]

    def take(self, scale, model, seed, measurement):
        """Returns a pair: {kind: recorded values}, and a Measurement of the parts that are not recorded (None if all
        parts are recorded)."""
        from dataclasses import replace

        ignore = ("optimizer.lr",) if model.rates else ()
        wanted = identity(*model.configuration(scale, seed), ignore)
        keys = [key for key in self.found if (identity_without(key, ignore), key[1]) == wanted]
        if scale.name != "small" or not keys:
            return {}, measurement
        values = self.found[keys[0]]
        if measurement.kind != "model":
            recorded = self.settings.get((*keys[0], measurement.kind), {})
            same = all(recorded.get(name, value) == value for name, value in measurement.settings.items())
            if measurement.kind in values and same:
                return {measurement.kind: values[measurement.kind]}, None
            return {}, measurement
        parts = measurement.settings["parts"]
        complete = set(RECORD_PARTS) if keys[0] in self.protocol else set()
        complete |= set(values.get("model", {}))
        found = {key: value for key, value in values.get("model", {}).items() if key in parts}
        missing = [part for part in parts if part not in complete]
        rest = replace(measurement, settings=measurement.settings | {"parts": missing}) if missing else None
        return {"model": found}, rest


def identity_without(key, ignore):
    (files, overrides), _ = key
    return files, tuple((name, value) for name, value in overrides if name not in ignore)
