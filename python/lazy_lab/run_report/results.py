"""Reads the results that other commands store in the folder of a run: eval.json, lengths.json and sinks.json."""

import math

SINK_MEASURES = ("sink_ratio", "density", "released_mass", "alive_fraction", "sink_1_0.3")


def metric(task, name):
    return next((task[key].number() for key in (f"{name},none", name) if key in task), None)


def read_eval(content, run):
    """Reads eval.json. Stores losses and perplexities in run.values, and accuracies in run.scores as a list of {task,
    metric, value, error, chance}. value, error and chance are fractions; error and chance can be None. The metric of a
    task is the metric that the key "average" names for it, otherwise "acc"."""
    tasks, average = content["results"], content["average"] if "average" in content else None
    measures = [("heldout", name) for name in ("loss", "bits_per_byte", "perplexity")]
    for task, name in [*measures, ("wikitext", "word_perplexity")]:
        if task in tasks.keys() and (value := metric(tasks[task], name)) is not None:
            run.values[name] = value
    for task in tasks.keys():
        named = average and "metrics" in average and task in average["metrics"]
        name = average["metrics"][task].text() if named else "acc"
        if (value := metric(tasks[task], name)) is not None:
            key = f"{name}_stderr,none"  # the value is "N/A" if the error is not known
            error = tasks[task][key].number() if key in tasks[task] and tasks[task][key].value != "N/A" else None
            chance = content["chance"] if "chance" in content else ()
            chance = metric(chance[task], "random") if task in chance else None
            run.scores.append({"task": task, "metric": name, "value": value, "error": error, "chance": chance})
    run.mean_score = metric(average, "acc") if average else None
    named = "config" in content and "command" in content["config"]
    run.loss_source = content["config"]["command"].text() if named else "lazy eval"


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
    """Returns the results of `lazy sinks --measures`. Measures that were not requested are absent."""
    found = {}
    if "weights" in content:
        found["sink_k"] = content["weights"]["sink_k"].numbers()
        found["entropy"] = content["weights"]["entropy"].matrix()
    if "vectors" in content:
        places = content["vectors"]
        found["vectors"] = {
            place: {key: places[place][key].matrix() for key in ("norm", "variance")} for place in places.keys()
        }
    if "massive" in content:
        keys = ("per_sample", "largest", "median", "position", "dimension")
        found["massive"] = [{key: place[key].number() for key in keys} for place in content["massive"]]
    if "collapse" in content:
        for key in ("cosine", "effective_rank"):
            samples = [place[key].numbers() for place in content["collapse"]]
            found[key] = [sum(values) / max(1, len(values)) for values in samples]
    return found


def read_sinks(content, run):
    """Reads sinks.json. Stores the overall measures in run.values. Stores the settings and the keys per_head ({measure:
    [layer][head]}), maps, further, command and normalizer in run.sinks."""
    if content["version"].number() not in (1, 2):
        content["version"].wrong("1 or 2")
    per_head = {}
    for name in SINK_MEASURES:
        if name == "sink_1_0.3" and content["settings"]["sink_samples"].number() == 0:
            continue  # not measured
        value = run.values[name] = content["overall"][name].number()
        # If an offset is positive, released mass can be negative and density can exceed one.
        if not math.isfinite(value) or (name == "alive_fraction" and not 0 <= value <= 1):
            content["overall"][name].wrong("a fraction")
        per_head[name] = content["per_head"][name].matrix(per_head.get("sink_ratio"))
    settings = content["settings"]
    first = 1 if content["version"].value == 1 else 0
    run.sinks = {key: int(settings[key].number()) for key in ("length", "samples", "sink_length", "sink_samples")} | {
        "bos": "bos" in settings and settings["bos"].value is True,
        "normalizer": content["model"]["normalizer"].text(),
        "command": content["command"].text() if "command" in content else "",
        "per_head": per_head,
        "maps": [read_map(item, first) for item in content["attention_maps"]] if "attention_maps" in content else [],
        "further": read_further(content["further"]) if "further" in content else {},
    }
