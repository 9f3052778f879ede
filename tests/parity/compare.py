#!/usr/bin/env python3
"""Compares results and samples of lm-evaluation-harness with results and samples of `lazy eval`, for every request.

    python tests/parity/compare.py HARNESS_FOLDER [...] --lazy FOLDER [--tolerance 1e-3]

The script searches the folders for results_*.json and samples_TASK_*.jsonl. If there are several runs of a task, the
latest one is used. The default tolerance of a log-likelihood, 1e-3, is about five times the largest difference on eight
full sets in fp32 (docs/guides/evaluation.md). Metrics and standard errors must be equal when rounded to four decimals,
as in the printed tables. The harness sums the log-likelihoods of a window in fp32. Therefore the log-likelihood l of a
long text has a relative error of up to 2^-23. The perplexity, which is computed from l, has a relative error of up to
ln(perplexity) 2^-23. Differences within these errors are accepted and counted separately. Exit code: 0 equal, 1
different, 2 nothing to compare.
"""

import argparse
import json
import math
import sys
from pathlib import Path

FP32 = 2.0**-23


class Run:
    """The metrics and the documents of one task.

    `documents` is {number: ([(context, continuation), ...], [log-likelihood, ...], accuracies)}.
    """

    def __init__(self, metrics, version, documents):
        self.metrics, self.version, self.documents = metrics, version, documents


def likelihoods(sample):
    """Returns the log-likelihoods of a document's requests. The harness stores them as [["-1.5", "False"], ...], or as
    ["-1.5"] for rolling log-likelihoods."""
    return [float(r[0] if isinstance(r, list) else r) for r in sample["filtered_resps"]]


def prompts(sample):
    """Returns the texts of a document's requests. The harness stores them as {"gen_args_0": {"arg_0": context, "arg_1":
    continuation}, ...}."""
    arguments = sample["arguments"]
    return [
        [request[f"arg_{j}"] for j in range(len(request))]
        for request in (arguments[f"gen_args_{i}"] for i in range(len(arguments)))
    ]


def read_run(results_file, task):
    results = json.loads(results_file.read_text(encoding="utf-8"))
    metrics = {name: value for name, value in results["results"][task].items() if "," in name}
    documents = {}
    date = results_file.stem.removeprefix("results_")
    file = results_file.with_name(f"samples_{task}_{date}.jsonl")
    if file.exists():
        with open(file, encoding="utf-8", newline="\n") as lines:
            for sample in map(json.loads, lines):
                accuracies = {m: sample[m] for m in ("acc", "acc_norm") if m in sample}
                documents[sample["doc_id"]] = (prompts(sample), likelihoods(sample), accuracies)
    return Run(metrics, str(results.get("versions", {}).get(task)), documents)


def load(folders):
    """Returns {task: Run} with the latest results of each task in the folders and their subfolders."""
    files = [f for folder in folders for f in Path(folder).rglob("results_*.json")]
    runs = {}
    for file in sorted(files, key=lambda f: f.name):
        for task in json.loads(file.read_text(encoding="utf-8"))["results"]:
            runs[task] = read_run(file, task)
    return runs


def agreement(name, there, here):
    """Returns "printed" if the values are equal when printed in a table, "rounding" if two perplexities differ only by
    fp32 rounding, and otherwise None."""
    if not all(isinstance(value, (int, float)) for value in (there, here)):
        return "printed" if there == here else None
    if f"{there:.4f}" == f"{here:.4f}":
        return "printed"
    if "perplexity" in name and there > 1 and here > 1 and abs(math.log(there / here)) <= math.log(there) * FP32:
        return "rounding"
    return None


def compare_task(task, theirs, ours, tolerance):
    """Returns a triple: the differences of the log-likelihoods, the number of values for each kind of agreement (see
    `agreement`), and a list of error messages."""
    wrong, agreed = [], {"printed": 0, "rounding": 0, "long": 0}
    if theirs.version != ours.version:
        wrong.append(f"version {theirs.version} in the harness, {ours.version} in lazy")
    if not theirs.documents or not ours.documents:
        wrong.append("samples are missing " + ("there" if not theirs.documents else "here"))
    if theirs.documents.keys() != ours.documents.keys():
        wrong.append(f"{len(theirs.documents)} documents in the harness, {len(ours.documents)} in lazy")
    differences, beyond, decided = [], [], []
    for number in sorted(theirs.documents.keys() & ours.documents.keys()):
        (requests, values, accuracies), (our_requests, our_values, our_accuracies) = (
            theirs.documents[number],
            ours.documents[number],
        )
        if requests != our_requests or len(values) != len(our_values):
            wrong.append(
                f"document {number}: different requests: harness {str(requests)[:200]}, lazy {str(our_requests)[:200]}"
            )
            continue
        for x, y in zip(values, our_values):
            difference = abs(x - y) if x != y else 0.0
            differences.append(difference)
            if difference <= tolerance:
                continue
            if difference <= abs(x) * FP32:
                agreed["long"] += 1
            else:  # the difference is too large, or a value is NaN
                beyond.append(difference)
        if accuracies != our_accuracies:
            decided.append(number)
    if decided:
        wrong.append(
            f"different answers in documents {', '.join(map(str, decided[:10]))}{' ...' if len(decided) > 10 else ''}"
        )
    if beyond:
        wrong.append(
            f"{len(beyond)} requests' log-likelihoods differ by more than {tolerance:g}, one by {beyond[0]:.2e}"
        )
    for name, value in theirs.metrics.items():
        how = agreement(name, value, ours.metrics.get(name, "missing"))
        if not how:
            wrong.append(f"{name}: {value} in the harness, {ours.metrics.get(name, 'missing')} in lazy")
        elif value != "N/A":
            agreed[how] += 1
    return differences, agreed, wrong[:20]


def compare(theirs, ours, tolerance=1e-3, out=sys.stdout):
    """Compares the runs of all tasks, prints a table and a verdict, and returns the exit code."""
    tasks = list(theirs)
    if not tasks:
        print("parity: FAIL: no results of lm-evaluation-harness to compare with", file=out)
        return 2
    print(
        f"{'task':<16} {'documents':>9} {'requests':>8} {'max |diff|':>11} {'mean |diff|':>11}  "
        "metrics and standard errors",
        file=out,
    )
    everything, failed = [], 0
    for task in tasks:
        if task not in ours:
            differences, agreed, wrong = [], {}, ["not evaluated here"]
        else:
            differences, agreed, wrong = compare_task(task, theirs[task], ours[task], tolerance)
        everything += differences
        failed += bool(wrong)
        largest, mean = (max(differences), sum(differences) / len(differences)) if differences else (float("nan"),) * 2
        state = wrong[0] if wrong else f"{agreed['printed']} equal as printed"
        if not wrong and agreed["rounding"]:
            state += f", {agreed['rounding']} equal up to fp32 rounding"
        if not wrong and agreed["long"]:
            state += (
                f"; {agreed['long']} requests differ by more than {tolerance:g}, but within the rounding error of fp32"
            )
        print(
            f"{task:<16} {len(theirs[task].documents):>9} {len(differences):>8} {largest:>11.2e} {mean:>11.2e}  "
            f"{state}",
            file=out,
        )
        for line in wrong[1:]:
            print(f"{'':<60}{line}", file=out)
    summary = f"{len(tasks)} tasks, {len(everything)} requests"
    if everything:
        summary += f", largest difference {max(everything):.2e}, mean {sum(everything) / len(everything):.2e}"
    print(
        f"parity: {'FAIL' if failed else 'PASS'}: {summary}" + (f"; {failed} tasks differ" if failed else ""), file=out
    )
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("harness", nargs="+", help="folders with lm-evaluation-harness's results and samples")
    parser.add_argument("--lazy", required=True, action="append", help="folder with the output of `lazy eval`")
    parser.add_argument(
        "--tolerance", type=float, default=1e-3, help="tolerance of log-likelihoods (default %(default)s)"
    )
    arguments = parser.parse_args()
    return compare(load(arguments.harness), load(arguments.lazy), arguments.tolerance)


if __name__ == "__main__":
    sys.exit(main())
