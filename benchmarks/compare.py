#!/usr/bin/env python3
"""Trains and evaluates several configurations on one machine and prints a table of the results.

    python benchmarks/compare.py configs/compare-55m.toml --corpus DIR [--data DIR] [--output runs/compare] [--gpus 2]
                                 [--jobs 2] [--trainings 1] [--seconds N] [--set KEY=VALUE ...] [--lengths 256,512,...]
                                 [--limit 64] [--task-limit N] [--page FILE.html]

A configuration is FILE.toml or FILE.toml+VARIANT; a file with variants stands for all of them. For every configuration
the script runs `lazy train`, `lazy eval --lengths`, with --data `lazy eval --tasks all`, and `lazy sinks` if the model
has attention layers. JOBS run at a time on each GPU,
in the order of the arguments, and at most TRAININGS of them are trainings (with `--jobs 2 --trainings 1` a training
runs alone or together with the evaluation of another model). --gpus 0 selects the CPU. Finished steps are stored in
OUTPUT/NAME and are not repeated. Trainings continue from their last checkpoint: after --seconds, running jobs are told
to stop, and the same command continues later. Logs: OUTPUT/NAME.STEP.out. Without a corpus, the script only prints the
table of the existing results.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import threading
import time

import tomllib

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("configs", nargs="+")
p.add_argument("--corpus", help="corpus folder written by `lazy data prepare`")
p.add_argument("--data", help="folder with the files of the evaluation sets")
p.add_argument("--output", type=pathlib.Path, default=pathlib.Path("runs/compare"))
p.add_argument("--lazy", default="build/lazy", help="path of the program `lazy`")
p.add_argument("--gpus", type=int, default=1)
p.add_argument("--jobs", type=int, default=1, help="number of concurrent jobs per GPU")
p.add_argument("--trainings", type=int, help="maximum number of concurrent jobs per GPU that train (default: --jobs)")
p.add_argument("--seconds", type=float, default=float("inf"))
p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override of a configuration key")
p.add_argument("--lengths", default="256,512,1024,2048,4096")
p.add_argument("--limit", default="64", help="sequences per length for `lazy eval --lengths`")
p.add_argument("--task-limit", help="maximum number of documents per task, the same for all models (default: all)")
p.add_argument("--samples", default="32", help="number of samples for `lazy sinks`")
p.add_argument("--page", help="also write a page of `lazy report` about all models to this file")
a = p.parse_args()


def expand(config):
    """Expands an argument to {name of the run: configuration}. A file with variants gives one entry per variant; any
    other configuration gives a single entry."""
    file, plus, variant = config.partition(".toml+")
    if plus:
        return {variant: config}
    variants = tomllib.loads(pathlib.Path(config).read_text(encoding="utf-8")).get("variants", {})
    return {name: f"{config}+{name}" for name in variants} or {pathlib.Path(config).stem: config}


a.configs = {name: config for argument in a.configs for name, config in expand(argument).items()}
end = time.monotonic() + a.seconds
training = [threading.Semaphore(a.trainings or a.jobs) for _ in range(max(1, a.gpus))]
running, lock, stopped = set(), threading.Lock(), threading.Event()


def steps(name):
    """Yields (name, output file, command) for each step, in order. A later step may read the output of an earlier
    step."""
    run = a.output / name
    model, corpus, where = run / "model", ["--corpus", a.corpus], ["--bos", "--device", "cuda" if a.gpus else "cpu"]
    train = [a.lazy, "train", a.configs[name], "--set", f"data.corpus={a.corpus}", "--set", f"training.output={run}"]
    for item in a.set:
        train += ["--set", item]
    yield "train", model / "config.json", train + (["--resume"] if (run / "checkpoints").exists() else [])
    measure = [a.lazy, "eval", model, *where, "--dtype", "bf16"]
    yield (
        "lengths",
        run / "lengths.json",
        [*measure, *corpus, "--lengths", a.lengths, "--limit", a.limit, "--output", run / "lengths.json"],
    )
    if attends(model):
        yield (
            "sinks",
            run / "sinks.json",
            [a.lazy, "sinks", model, *corpus, *where, "--samples", a.samples, "--json", run / "sinks.json"],
        )
    if a.data:
        limit = ["--limit", a.task_limit] if a.task_limit else []
        yield (
            "tasks",
            run / "eval.json",
            [*measure, "--tasks", "all", "--data", a.data, *limit, "--output", run / "eval.json"],
        )


def attends(model):
    """Returns whether the model has attention layers, which `lazy sinks` can measure."""
    config = json.loads((model / "config.json").read_text())
    return not config["model_type"].startswith(("retnet", "mamba", "delta", "gated_delta", "ttt", "titans"))


def work(name, gpu):
    for step, left, command in steps(name):
        if left.exists():
            continue
        with training[gpu] if step == "train" else contextlib.nullcontext():
            if stopped.is_set() or not succeeds(step, name, command, gpu):
                return


def succeeds(step, name, command, gpu):
    a.output.mkdir(parents=True, exist_ok=True)
    log = a.output / f"{name}.{step}.out"
    environment = {**os.environ, **({"CUDA_VISIBLE_DEVICES": str(gpu)} if a.gpus else {})}
    begin = time.monotonic()
    with open(log, "w") as out:
        process = subprocess.Popen([str(word) for word in command], stdout=out, stderr=out, env=environment)
        with lock:
            running.add(process)
        code = process.wait()
        with lock:
            running.discard(process)
    said = f"{step} of {name}: {time.monotonic() - begin:.0f} s"
    print(said if code == 0 else f"{said}, exit code {code}, see {log}", flush=True)
    return code == 0


def slot(queue, gpu):
    while not stopped.is_set():
        with lock:
            if not queue:
                return
            name = queue.pop(0)
        work(name, gpu)


def train_all():
    queue = list(a.configs)
    threads = [threading.Thread(target=slot, args=(queue, gpu)) for _ in range(a.jobs) for gpu in range(max(1, a.gpus))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=max(0, end - time.monotonic()) if end != float("inf") else None)
    stopped.set()
    with lock:
        for process in running:
            process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()


def read(path):
    return json.loads(path.read_text()) if path.exists() else {}


def row(name):
    run = a.output / name
    if not (run / "log.jsonl").exists():
        return None
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    held = [(line["step"], line["validation_metrics/loss"]) for line in log if "validation_metrics/loss" in line]
    last = max((line["step"] for line in log), default=0)
    speeds = [line["throughput(tps)"] for line in log if "throughput(tps)" in line]
    norms = [line["grad_norm"] for line in log if "grad_norm" in line and line["step"] > last / 5]
    lengths, tasks, sinks = (read(run / f"{name}.json") for name in ("lengths", "eval", "sinks"))
    by_length = lengths["results"]["heldout"]["models"][0]["lengths"] if lengths else []
    overall = sinks.get("overall", {})
    share = lambda key: f"{100 * overall[key]:.1f} %" if overall else ""  # noqa: E731
    done = (run / "model" / "config.json").exists()
    return (
        held[-1][1] if held else float("inf"),
        [
            name,
            (f"{held[-1][1]:.3f}" if held else "")
            + ("" if done else f" at step {held[-1][0] if held else 0}; not finished"),
            f"{statistics.median(speeds) / 1000:.1f}k" if speeds else "",
            f"{max(norms):.2g}" if norms else "",
            f"{tasks['results']['wikitext']['word_perplexity,none']:.0f}"
            if "wikitext" in tasks.get("results", {})
            else "",
            f"{100 * tasks['average']['acc']:.1f}" if tasks.get("average") else "",
            " / ".join(f"{x['loss']:.2f}" for x in by_length),
            share("sink_ratio"),
            share("density"),
            share("alive_fraction"),
        ],
    )


def table():
    rows = sorted(filter(None, map(row, a.configs)))
    head = [
        "model",
        "held-out loss",
        "median tokens/s of training",
        "largest gradient norm after the first fifth of the steps",
        "WikiText, perplexity per word",
        "mean of eight accuracies, %",
        f"loss at {a.lengths.replace(',', ' / ')} tokens",
        "sink ratio",
        "density",
        "alive pairs",
    ]
    for cells in [head, ["---"] * len(head), *(cells for _, cells in rows)]:
        print("| " + " | ".join(cells) + " |")


if a.corpus:
    train_all()
table()
runs = [a.output / name for name in a.configs if (a.output / name / "log.jsonl").exists()]
if a.page and runs:
    sys.exit(subprocess.run([a.lazy, "report", *runs, "--output", a.page]).returncode)
