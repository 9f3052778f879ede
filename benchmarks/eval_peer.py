#!/usr/bin/env python3
"""Compares the speed of `lazy eval` with lm-evaluation-harness 0.4.13 (its `hf` model) on the same model and requests.

    python benchmarks/eval_peer.py --model DIR --data DIR --lazy build/lazy [--limit 100] [--json FILE]
    python benchmarks/eval_peer.py --model DIR --data DIR --lazy build/lazy --device cuda --dtype bf16

Run it with an interpreter that has lm_eval, torch, transformers and accelerate. One measurement covers the eight data
sets other than WikiText together, and a second one covers WikiText; with --each, every set is also measured separately.
Two times are reported: the time from the loaded model to the written results, and the time of the whole process.
`lazy eval` always runs in a separate process. Its start time is measured by a run with one document per task; the first
of the two times is the time of the process minus this start time. The harness is warmed up with the same documents. Its
start time consists of the warm-up, the imports and the loading of the model. By default the harness does not compute
bootstrapped standard errors (--bootstrap-iters 0), so that only requests, scoring and the writing of records are timed.
The fastest of several --batch-size values and the best of --repeat runs are used.

The log-likelihoods are compared before a ratio is printed. In fp32 they must agree within 1e-3; for long texts, larger
differences within the errors of fp32 sums (see `allowed`) are accepted. In bf16 the largest and the mean difference are
only printed, because both programs round intermediate results.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "parity"))
import compare  # noqa: E402
import rows  # noqa: E402

# LANES and SHARE_LOST define the accepted rounding error of the log-softmax on a CPU. Both programs sum the
# exponentials of a token over the vocabulary in fp32, with one accumulator per vector lane: PyTorch's log_softmax uses
# 8 (AVX2) or 16 (AVX-512), `lazy eval` uses the lanes of the machine. Every addition of a small term to a large running
# sum loses at most 2^-24 of the running sum. These errors have the same sign, so the error of a text grows with its
# number of tokens. Compared with sums in float64, the actual error of SmolLM2 (vocabulary of 49,152) is 4 % of this
# bound for 8 and for 16 lanes, on average over a WikiText document: 1.5e-5 nats per token with 8 lanes, 7.3e-6 with 16.
# The check allows 10 % of the bound.
LANES, SHARE_LOST = 8, 0.1

GROUPS = {"multiple choice and LAMBADA": [task for task in rows.TASKS if task != "wikitext"], "WikiText": ["wikitext"]}


def time_lazy(a, tasks, output, limit):
    command = [
        a.lazy,
        "eval",
        a.model,
        "--tasks",
        ",".join(tasks),
        "--data",
        a.data,
        "--output",
        output,
        "--log-samples",
        "--dtype",
        a.dtype,
        "--device",
        a.device,
        "--bos" if a.bos else "--no-bos",
    ]
    for name, value in (("--limit", limit), ("--max-length", a.max_length)):
        if value:
            command += [name, str(value)]
    begin = time.perf_counter()
    if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
        raise SystemExit("failed: " + " ".join(command))
    return time.perf_counter() - begin


def time_harness(a, lm, tasks, output):
    import harness
    import torch

    if a.device == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    harness.evaluate(lm, a.data, tasks, output, limit=a.limit, bootstrap_iters=a.bootstrap_iters)
    return time.perf_counter() - begin


def allowed(log_likelihood, tokens, vocabulary):
    """Returns the maximum allowed difference, in nats, between two fp32 log-likelihoods of a text. It is the sum of the
    rounding errors of its `tokens` tokens and of the error of the harness's fp32 sum over these tokens."""
    per_token = vocabulary / LANES * 2.0**-24 * SHARE_LOST
    return max(1e-3, tokens * per_token + abs(log_likelihood) * compare.FP32)


def agreement(theirs, ours, lm):
    """Returns the number of requests, the largest and the mean difference of the log-likelihoods, and whether all
    differences are within `allowed`."""
    differences, equal = [], True
    for task, run in theirs.items():
        for number, (requests, values, _) in run.documents.items():
            our_requests, our_values, _ = ours[task].documents[number]
            if requests != our_requests:
                raise SystemExit(f"{task}: document {number}: the two programs have different requests")
            for request, x, y in zip(requests, values, our_values, strict=True):
                differences.append(abs(x - y))
                if differences[-1] > 1e-3:
                    tokens = len(lm.tok_encode(request[-1]))  # number of scored tokens
                    equal = equal and differences[-1] <= allowed(x, tokens, lm.model.config.vocab_size)
                equal = equal and not math.isnan(differences[-1])
    return len(differences), max(differences), sum(differences) / len(differences), equal


def measure(a, models, harness_start, name, tasks):
    with tempfile.TemporaryDirectory() as folder:
        start = min(time_lazy(a, tasks, f"{folder}/start", 1) for _ in range(2))
        lazy = min(time_lazy(a, tasks, f"{folder}/lazy", a.limit) for _ in range(a.repeat))
        times = {}
        for batch_size, lm in models.items():
            times[batch_size] = min(time_harness(a, lm, tasks, f"{folder}/harness") for _ in range(a.repeat))
        requests, largest, mean, equal = agreement(
            compare.load([f"{folder}/harness"]), compare.load([f"{folder}/lazy"]), next(iter(models.values()))
        )
    if a.dtype == "fp32" and not equal:
        raise SystemExit(f"{name}: log-likelihoods differ by {largest:.2e}; no times are reported for unequal results")
    batch_size = min(times, key=times.get)
    there = times[batch_size]
    return {
        "set": name,
        "tasks": tasks,
        "requests": requests,
        "lazy_seconds": lazy,
        "lazy_start_seconds": start,
        "harness_seconds": there,
        "harness_start_seconds": harness_start,
        "harness_batch_size": batch_size,
        "ratio_loaded": there / (lazy - start),
        "ratio_processes": (harness_start + there) / lazy,
        "largest_difference": largest,
        "mean_difference": mean,
    }


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--lazy", default="build/lazy")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    p.add_argument(
        "--threads", type=int, default=os.cpu_count(), help="CPU threads of both programs (default: %(default)s)"
    )
    p.add_argument(
        "--batch-size", help="batch sizes that the harness tries (default: auto on CUDA, 4,16,64 on the CPU)"
    )
    p.add_argument("--limit", type=int, help="maximum number of documents per task")
    p.add_argument("--max-length", type=int, help="maximum length in tokens (default: the model's maximum)")
    p.add_argument("--bos", action="store_true")
    p.add_argument(
        "--tasks",
        type=lambda names: names.split(","),
        default=rows.TASKS,
        help="evaluation sets, separated by commas (default: all nine)",
    )
    p.add_argument("--each", action="store_true", help="also time every evaluation set separately")
    p.add_argument("--repeat", type=int, default=1)
    p.add_argument(
        "--bootstrap-iters", type=int, default=0, help="bootstrap iterations of the harness (its default: 100000)"
    )
    p.add_argument("--json", help="write the results to this file")
    a = p.parse_args()
    if unknown := set(a.tasks) - set(rows.TASKS):
        p.error(f"--tasks: unknown: {', '.join(sorted(unknown))}; the sets are {', '.join(rows.TASKS)}")
    begin = time.perf_counter()
    # must be set before PyTorch is imported; the processes of `lazy` inherit it
    os.environ["OMP_NUM_THREADS"] = str(a.threads)
    import harness
    import torch

    torch.set_num_threads(a.threads)
    sizes = (a.batch_size or ("auto" if a.device == "cuda" else "4,16,64")).split(",")
    dtype = {"fp32": "float32", "bf16": "bfloat16"}[a.dtype]
    models, harness_start = {}, None
    for size in sizes:
        models[size] = harness.load(
            a.model,
            bos=a.bos,
            batch_size=size if size == "auto" else int(size),
            max_length=a.max_length,
            dtype=dtype,
            device=a.device,
        )
        # Warm up caches, kernels and the harness's modules with one document per task.
        harness.evaluate(models[size], a.data, a.tasks, limit=1, bootstrap_iters=0)
        harness_start = harness_start or time.perf_counter() - begin
    groups = {name: [task for task in tasks if task in a.tasks] for name, tasks in GROUPS.items()}
    sets = {name: tasks for name, tasks in groups.items() if tasks}
    if a.each:
        sets |= {task: [task] for task in a.tasks if task != "wikitext"}
    machine = torch.cuda.get_device_name() if a.device == "cuda" else f"{a.threads} CPU threads"
    print(
        f"\n{a.model}: {a.dtype} on {machine}, {'with' if a.bos else 'no'} BOS, "
        f"documents per task: {a.limit or 'all'}\n"
    )
    print(
        "Times are in seconds after loading the model; the time until then is in brackets. loaded and process: time of "
        "the harness divided by the time of lazy eval, after loading and for the whole process.\n"
    )
    print(
        f"| {'set':<28} | requests | lazy eval     | harness       | batch | loaded | process | max diff | mean diff |"
    )
    print(f"|{'-' * 30}|---------:|--------------:|--------------:|------:|-------:|--------:|---------:|----------:|")
    results = []
    for name, tasks in sets.items():
        r = measure(a, models, harness_start, name, tasks)
        results.append(r)
        print(
            f"| {name:<28} | {r['requests']:>8} "
            f"| {r['lazy_seconds'] - r['lazy_start_seconds']:>5.2f} ({r['lazy_start_seconds']:>5.2f}) "
            f"| {r['harness_seconds']:>5.2f} ({harness_start:>5.2f}) "
            f"| {r['harness_batch_size']:>5} | {r['ratio_loaded']:>6.2f} "
            f"| {r['ratio_processes']:>7.2f} | {r['largest_difference']:.2e} | {r['mean_difference']:>9.2e} |",
            flush=True,
        )
    if a.json:
        Path(a.json).write_text(
            json.dumps(
                {
                    "model": a.model,
                    "device": machine,
                    "dtype": a.dtype,
                    "limit": a.limit,
                    "bos": a.bos,
                    "lm_eval": harness.VERSION,
                    "torch": torch.__version__,
                    "results": results,
                },
                indent=2,
            )
            + "\n"
        )


if __name__ == "__main__":
    main()
