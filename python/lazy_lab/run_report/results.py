"""Reads the results that other commands store in the folder of a run: eval.json, lengths.json and sinks.json."""

import math
from statistics import fmean

LOSSES = {"loss": "heldout", "bits_per_byte": "heldout", "perplexity": "heldout", "word_perplexity": "wikitext"}
SINK_MEASURES = ("sink_ratio", "density", "released_mass", "alive_fraction", "sink_1_0.3")


def metric(task, name):
    """Returns a finite metric of a task, or None. lm-evaluation-harness appends the name of a filter to its keys."""
    values = (task[key].number() for key in (f"{name},none", name) if key in task)
    return next(filter(math.isfinite, values), None)


def read_eval(content, run):
    """Reads eval.json. Stores losses and perplexities in run.values, and accuracies in run.scores as {task: {metric,
    value, error, chance}}. value, error and chance are fractions; error and chance can be None. The metric of a task is
    the metric that the key "average" names for it, otherwise "acc"."""
    tasks = content["results"]
    found = {name: metric(tasks[task], name) for name, task in LOSSES.items()}
    run.values |= {name: value for name, value in found.items() if value is not None}
    for task in tasks.keys():
        name = content["average"]["metrics"][task].text("acc")
        if (value := metric(tasks[task], name)) is not None:
            error = f"{name}_stderr,none"
            is_known = error in tasks[task] and tasks[task][error].value != "N/A"
            run.scores[task] = {
                "metric": name,
                "value": value,
                "error": tasks[task][error].number() if is_known else None,
                "chance": metric(content["chance"][task], "random"),
            }
    if (mean := metric(content["average"], "acc")) is not None:
        run.scores["mean"] = {"metric": "", "value": mean, "error": None, "chance": None}
    run.loss_source = content["config"]["command"].text("lazy eval")


def read_lengths(content, run):
    """Reads the output of `lazy eval --lengths` for one model. Stores the held-out losses in run.loss_by_length."""
    if "heldout" in content["results"]:
        models = content["results"]["heldout"]["models"]
        if len(list(models)) != 1:
            models.wrong("a list of one model, the model of the run")
        rows = [row for row in models[0]["lengths"] if "loss" in row]
        run.loss_by_length = {int(row["length"].number()): row["loss"].number() for row in rows}


def read_map(content, first):
    """Returns an attention map. `first` is the number, 0 or 1, from which the file counts layers and heads."""
    tokens, rows = [token.text() for token in content["tokens"]], [row.numbers() for row in content["weights"]]
    if len(rows) != len(tokens):
        content["weights"].wrong(f"{len(tokens)} rows, one per token")
    for i, row in enumerate(rows):
        if len(row) != i + 1:
            content["weights"][i].wrong(f"{i + 1} weights, one per visible key")
    place = {key: int(content[key].number()) - first for key in ("layer", "head")}
    return place | {"tokens": tokens, "weights": rows}


def read_further(content):
    """Returns the results of `lazy sinks --measures`: "lines" is a list of (title, rows, name of the x axis, first x
    coordinate). "entropy" ([layer][head]) and "massive" are empty if they were not requested."""
    lines, entropy, massive = [], [], []
    if "weights" in content:
        lines.append(("Sink_k, % of heads", [[100 * x for x in content["weights"]["sink_k"].numbers()]], "k", 1))
        entropy = content["weights"]["entropy"].matrix()
    if "vectors" in content:
        for place in content["vectors"].keys():
            for key in ("norm", "variance"):
                lines.append((f"{place}: {key}", content["vectors"][place][key].matrix(), "position", 1))
    if "massive" in content:
        keys = ("per_sample", "largest", "median", "position", "dimension")
        massive = [{key: place[key].number() for key in keys} for place in content["massive"]]
    if "collapse" in content:
        for key, title in (("cosine", "Pairwise cosine"), ("effective_rank", "Effective rank")):
            means = [fmean(place[key].numbers()) for place in content["collapse"]]
            lines.append((f"{title} of hidden states", [means], "place", 0))
    return {"lines": lines, "entropy": entropy, "massive": massive}


def read_sinks(content, run):
    """Reads sinks.json. Stores the overall measures in run.values. Stores the settings and the keys per_head ({measure:
    [layer][head]}), maps, further, command and normalizer in run.sinks."""
    version, settings = content["version"].number(), content["settings"]
    if version not in (1, 2):
        content["version"].wrong("1 or 2")
    run.sinks = {key: int(settings[key].number()) for key in ("length", "samples", "sink_length", "sink_samples")}
    per_head = {}
    for name in SINK_MEASURES:
        if name == "sink_1_0.3" and run.sinks["sink_samples"] == 0:
            continue  # not measured
        value = run.values[name] = content["overall"][name].number()
        # If an offset is positive, released mass can be negative and density can exceed one.
        if not math.isfinite(value) or (name == "alive_fraction" and not 0 <= value <= 1):
            content["overall"][name].wrong("a fraction")
        per_head[name] = content["per_head"][name].matrix(per_head.get("sink_ratio"))
    maps = content["attention_maps"] if "attention_maps" in content else []
    run.sinks |= {
        "bos": settings["bos"].value is True,
        "normalizer": content["model"]["normalizer"].text(),
        "command": content["command"].text(""),
        "per_head": per_head,
        "maps": [read_map(item, first=1 if version == 1 else 0) for item in maps],
        "further": read_further(content["further"]) if "further" in content else {},
    }
