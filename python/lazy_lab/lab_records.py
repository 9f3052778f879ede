"""Recorded results: `lazy lab --scale small` uses the results in docs/results/records and does not compute them again.

A recorded training is found by its configuration. Options that do not change the model are ignored in the search."""

from dataclasses import replace

from . import records
from .lab_steps import merge
from .recipes.evidence import parsed

# Configuration key -> value that the training has if no override sets the key.
DEFAULTS = {
    "model.kind": "transformer",
    "model.normalizer": "softmax",
    "model.offset_init": -1,
    "model.distance_bias_window": 0,
    "model.rope_theta": 10000,
    "training.steps": 1526,
    "training.seed": 42,
    "optimizer.lr": 3e-3,
}
LAZY = {"model.normalizer": "elastic", "model.rope_theta": 150000}  # keys that the model kind "lazy" sets
WITHOUT_EFFECT = ("validation.", "checkpoint.", "metrics.")  # prefixes of keys that do not change the trained model
# Parts of `lazy measure model` that the evidence protocol measures for all models to which they apply.
PROTOCOL_PARTS = ("heldout", "wikitext", "lambada", "sinks", "lengths", "activations", "learned")
PROTOCOL_PARTS += ("other_rope_base", "post_hoc")
RENAMED = {"softmax-rope150k": "softmax-base150k"}  # names of baselines in older records


def identity(files, overrides):
    """Returns a hashable object that is equal for two configurations if they train the same model."""
    found = dict(overrides)
    if found.get("model.kind") == "lazy":
        found = LAZY | found | {"model.kind": "transformer"}
    kept = {
        (key, str(value))
        for key, value in found.items()
        if not key.startswith(WITHOUT_EFFECT) and DEFAULTS.get(key) != value
    }
    return tuple(files), frozenset(kept)


def mean(values):
    return sum(values) / len(values)


def means(values):
    """Returns {key: mean} of the lists in a dictionary. A recorded step has lists with one number per text."""
    return {key: mean(found) for key, found in values.items() if isinstance(found, list)}


def model_parts(kind, record):
    """Converts the values of a recorded step to the output format of `lazy measure model`."""
    values = record["values"]
    if kind == "heldout":
        return {"heldout": means(values)}
    if kind == "sinks":
        found = means(values)
        if "elastic" not in str(record["inputs"]["trainings"]) and "excess" in found:
            found["excess_at_offsets"] = found["excess"]
        return {"sinks": {"512": {"bos": found}}}
    if kind == "lengths":
        losses = {length: {"loss": mean(loss)} for length, loss in values["heldout"].items()}
        collapse = {length: means(found) for length, found in values.get("collapse", {}).items()}
        return {"lengths": {"bos_every_window": losses}, "collapse_by_length": collapse}
    bias = values.get("distance_bias")
    if bias:
        distances = [[distance, distance] for distance in range(len(bias[0][0]))]
        values = values | {"distance_bias": {"window": len(distances), "distances": distances, "bias": bias}}
    return {"learned": values}


class Recorded:
    """Finds the results in docs/results/records by the configuration of the training."""

    def __init__(self):
        self.found = {}  # result of identity() -> {kind of measurement: values}
        self.settings = {}  # (result of identity(), kind of measurement) -> recorded settings
        for record in records.read("steps"):
            trainings = record["inputs"]["trainings"]
            if not trainings or "overrides" not in trainings[0] or record["kind"] == "train":
                continue
            key = identity(trainings[0]["extends"], parsed(trainings[0]["overrides"]))
            values = self.found.setdefault(key, {})
            kind = record["settings"].get("study", record["kind"])
            if kind in ("heldout", "sinks", "lengths", "learned"):
                merge(values, {"model": model_parts(kind, record)})
            elif kind == "tasks":
                tasks = record["values"].items()
                found = {task: {metric: of["value"] for metric, of in metrics.items()} for task, metrics in tasks}
                merge(values, {"tasks": found})
            else:
                values[kind] = {RENAMED.get(name, name): found for name, found in record["values"].items()}
                self.settings[key, kind] = record["settings"]
        for record in records.read("evidence"):
            key = identity(["sink-55m.toml"], parsed(record["overrides"]) | {"training.steps": record["steps"]})
            model = self.found.setdefault(key, {}).setdefault("model", {})
            model |= dict.fromkeys(PROTOCOL_PARTS) | record["measures"]

    def take(self, scale, model, seed, measurement):
        """Returns a pair: {kind: recorded values}, and a Measurement of the parts that are not recorded (None if all
        parts are recorded)."""
        key, kind = identity(*model.configuration(scale, seed)), measurement.kind
        values = self.found.get(key, {}).get(kind)
        if values is None:
            return {}, measurement
        if kind != "model":
            recorded = self.settings.get((key, kind), {})
            same = all(recorded.get(name, value) == value for name, value in measurement.settings.items())
            return ({kind: values}, None) if same else ({}, measurement)
        parts = measurement.settings["parts"]
        missing = [part for part in parts if part not in values]
        found = {part: values[part] for part in parts if values.get(part) is not None}
        rest = replace(measurement, settings=measurement.settings | {"parts": missing}) if missing else None
        return {"model": found}, rest
