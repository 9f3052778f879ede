#!/usr/bin/env python3
"""Compares `lazy eval` with lm-evaluation-harness 0.4.13 on one model folder in fp32, for every request.

    python tests/parity/run.py --model DIR --data DIR --lazy build/lazy [--limit N] [--bos | --no-bos]
                               [--tasks piqa,...] [--device cuda]

Run the script with an interpreter that has lm_eval 0.4.13, torch, transformers and accelerate; it needs no network.
Both transformers and `lazy` must be able to load the model folder. --data has the same meaning as for `lazy eval`. The
results of the harness are cached in --cache and computed again only if the model, the rows or the options change. Exit
code: 0 equal, 1 different, 2 no comparison.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import compare
import rows


def run_lazy(a, tasks, output):
    """Runs `lazy eval` for the tasks. It writes results and samples to `output`."""
    command = [
        a.lazy,
        "eval",
        a.model,
        "--tasks",
        ",".join(tasks),
        "--data",
        a.data,
        "--log-samples",
        "--output",
        str(output),
        "--device",
        a.device,
        "--dtype",
        "fp32",
    ]
    for name in ("limit", "num_fewshot", "max_length"):
        if getattr(a, name):
            command += ["--" + name.replace("_", "-"), str(getattr(a, name))]
    if a.bos is not None:
        command.append("--bos" if a.bos else "--no-bos")
    print("+", " ".join(command), flush=True)
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode != 0:
        raise SystemExit("parity: FAIL: lazy eval ended with an error")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True, help="model folder")
    p.add_argument("--data", required=True, help="folder with the benchmarks' files")
    p.add_argument("--lazy", help="the lazy program; without it only the harness runs")
    p.add_argument("--tasks", default=",".join(rows.TASKS), help="default: %(default)s")
    p.add_argument("--limit", type=int, help="maximum number of documents per task")
    p.add_argument("--num-fewshot", type=int, help="number of examples in the prompt")
    p.add_argument("--max-length", type=int, help="maximum length in tokens (default: the model's)")
    p.add_argument(
        "--bos",
        action=argparse.BooleanOptionalAction,
        help="whether to insert BOS before every text, in both programs (default: the tokenizer's setting)",
    )
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="device of both (default %(default)s)")
    p.add_argument("--batch-size", type=int, default=16, help="batch size of the harness")
    p.add_argument("--tolerance", type=float, default=1e-3, help="tolerance of log-likelihoods (default %(default)s)")
    p.add_argument("--cache", default="build/parity", help="folder for the harness's results (default %(default)s)")
    p.add_argument("--output", help="keep the results of `lazy eval` in this folder")
    a = p.parse_args()
    tasks = a.tasks.split(",")
    for task in tasks:
        if task not in rows.SETS:
            p.error(f"task '{task}': expected one of {', '.join(rows.TASKS)}")
    import harness  # imported here, so that --help works without lm_eval

    theirs = harness.cached(
        a.model,
        a.data,
        tasks,
        a.cache,
        bos=a.bos,
        limit=a.limit,
        num_fewshot=a.num_fewshot,
        max_length=a.max_length,
        batch_size=a.batch_size,
        device=a.device,
    )
    if not a.lazy:
        print("\n".join(map(str, theirs)))
        return 0
    output = Path(a.output or tempfile.mkdtemp(prefix="parity"))
    try:
        run_lazy(a, tasks, output)
        return compare.compare(compare.load(theirs), compare.load([output]), a.tolerance)
    finally:
        if not a.output:
            shutil.rmtree(output, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
