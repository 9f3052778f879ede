"""Collects all measurements of the finished steps into results.json. Statistics are computed later by the report, so
that this module only needs the standard library."""

import datetime
import json
import math
import statistics

FORMAT = "lazy-uptrain/1"
# Kinds of models: the given model, the Lazy model with the final offset but without training, the trained softmax
# control, and the trained Lazy model.
KINDS = ("before", "untrained", "softmax", "lazy")
# The metric of a task that is used for comparisons. Other tasks use acc if they have it, otherwise their first metric.
# docs/guides/evaluation.md defines the metrics.
HEADLINES = {"hellaswag": "acc_norm", "arc_challenge": "acc_norm", "wikitext": "word_perplexity"}
ATTENTION = ("sink_ratio", "density", "released_mass", "alive_fraction")
SPEED = ("prompt_tokens", "tokens", "first_token_seconds", "seconds_per_token")
ARGUMENTS = ("tokens", "window", "to", "anneal", "seq_len", "batch_tokens", "lr", "weight_decay", "dtype", "gpus")
ARGUMENTS += ("heldout_tokens", "limit", "samples")


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def task_measures(results):
    """Converts the JSON output of `lazy eval` to {task: {metric: value}}. The additional key `headline` names the
    metric that is used for comparisons."""
    tasks = {}
    for task, values in results["results"].items():
        measures = {
            key.removesuffix(",none"): value
            for key, value in values.items()
            if key.endswith(",none") and not key.endswith("_stderr,none") and isinstance(value, (int, float))
        }
        headline = HEADLINES.get(task, "acc")
        tasks[task] = measures | {"headline": headline if headline in measures else next(iter(measures))}
        if task == "lambada_openai" and measures.get("perplexity", 0) > 0:
            tasks[task]["nats_per_word"] = math.log(measures["perplexity"])
    return tasks


def training_log(run):
    """Returns the training losses and validation losses by step, and the median tokens per second, from log.jsonl of a
    run folder."""
    log = run / "log.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
    entries = [json.loads(line) for line in lines]

    def points(name):
        return [[entry["step"], entry[name]] for entry in entries if entry.get(name) is not None]

    speeds = [entry["throughput(tps)"] for entry in entries if entry.get("throughput(tps)")]
    return {
        "loss": points("loss_metrics/global_avg_loss"),
        "validation": points("validation_metrics/loss"),
        "tokens_per_second": statistics.median_high(speeds) if speeds else None,
    }


def speed_measures(folder):
    """Returns the measurements of decoding by context length."""
    found = []
    for file in folder.glob("speed-*.json"):
        length, generated = int(file.stem.removeprefix("speed-")), read_json(file)[0]
        found.append({"length": length} | {name: generated.get(name) for name in SPEED})
        if sinks := read_json(folder / f"decode-{length}.json"):
            decode = sinks["further"]["decode"]
            found[-1] |= {name: statistics.fmean(decode[name]) for name in ("alive", "alive_in_group")}
            found[-1]["bytes"] = decode["alive_bytes"]
    return sorted(found, key=lambda speed: speed["length"])


def one_model(folder, run):
    """Returns the measurements of one model. Measurements whose files do not exist are omitted."""
    out = {}
    if heldout := read_json(folder / "heldout.json"):
        values = heldout["results"]["heldout"]
        out["heldout"] = {name: values[f"{name},none"] for name in ("loss", "bits_per_byte", "perplexity")}
        out["heldout"]["tokens"] = heldout["configs"]["heldout"]["tokens"]
        out["parameters"], out["device"] = heldout["config"]["model_num_parameters"], heldout["config"]["device"]
    if sinks := read_json(folder / "sinks.json"):
        parts = ("overall", "per_layer", "per_head")
        out["attention"] = {part: {name: sinks[part][name] for name in ATTENTION} for part in parts}
    if positions := read_json(folder / "positions.json"):
        lengths = positions["results"]["heldout"]["models"][0]["lengths"]
        out["positions"] = lengths[0]["positions"] if lengths else []
    if tasks := read_json(folder / "tasks.json"):
        out["tasks"] = task_measures(tasks)
    if speed := speed_measures(folder):
        out["speed"] = speed
    return out | ({"training": training_log(run)} if run else {})


def collect(options, passes, corpus, unfinished):
    """Returns the contents of results.json, computed from the measurement files that exist. `corpus` maps the splits of
    the corpus to their numbers of tokens. `unfinished` are the titles of the steps that are not finished."""
    models = []
    measured = options.output / "measured"
    for folder in measured.iterdir() if measured.is_dir() else ():
        kind, _, seed = folder.name.partition("-seed")
        run = options.output / "runs" / folder.name if seed else None
        if kind in KINDS and (model := one_model(folder, run)):
            models.append({"model": kind, "seed": int(seed) if seed else None} | model)
    models.sort(key=lambda model: (KINDS.index(model["model"]), model["seed"] or 0))
    return {
        "format": FORMAT,
        "date": datetime.date.today().isoformat(),
        "command": options.line,
        "name": options.model.parent.name if options.model.name == "model" else options.model.name,
        "steps": options.steps,
        "warmup_steps": options.warmup_steps,
        "arguments": {name: getattr(options, name) for name in ARGUMENTS},
        "corpus": corpus | {"passes": passes},
        "models": models,
        "unfinished": unfinished,
    }
