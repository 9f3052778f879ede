#!/usr/bin/env python3
"""Compares results and samples of lm-evaluation-harness with those of `lazy eval`, request by request.

    python tests/parity/compare.py HARNESS_FOLDER [...] --lazy FOLDER [--tolerance 1e-3]

A folder is searched for results_*.json and samples_TASK_*.jsonl; of several runs of a task the latest counts. Metrics
and standard errors must be equal as the tables print them, to four decimals. The harness adds up a window's
log-likelihoods in fp32, so that a long text's l is uncertain by 2^-23 of itself, and exp(l / n) by ln(perplexity)
2^-23: what differs by no more than that passes, and is counted apart.
Exit code: 0 equal, 1 different, 2 nothing to compare.
"""

import argparse
import json
import math
import sys
from pathlib import Path

FP32 = 2.0**-23


class Run:
    """One task's metrics and its documents.

    Documents are {number: ([(context, continuation), ...], [log-likelihood, ...], accuracies)}.
    """

    def __init__(self, metrics, version, documents):
        self.metrics, self.version, self.documents = metrics, version, documents


def likelihoods(sample):
    """Log-likelihoods of a document's requests: [["-1.5", "False"], ...], or ["-1.5"] of a rolling one."""
    return [float(r[0] if isinstance(r, list) else r) for r in sample["filtered_resps"]]


def prompts(sample):
    """The texts of its requests: {"gen_args_0": {"arg_0": context, "arg_1": continuation}, ...}."""
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
    """{task: Run} of the latest results below the folders."""
    files = [f for folder in folders for f in Path(folder).rglob("results_*.json")]
    runs = {}
    for file in sorted(files, key=lambda f: f.name):
        for task in json.loads(file.read_text(encoding="utf-8"))["results"]:
            runs[task] = read_run(file, task)
    return runs


def agreement(name, there, here):
    """ "printed", "rounding" (a perplexity beyond fp32's digits) or None."""
    if not all(isinstance(value, (int, float)) for value in (there, here)):
        return "printed" if there == here else None
    if f"{there:.4f}" == f"{here:.4f}":
        return "printed"
    if "perplexity" in name and there > 1 and here > 1 and abs(math.log(there / here)) <= math.log(there) * FP32:
        return "rounding"
    return None


def compare_task(task, theirs, ours, tolerance):
    """(differences of the requests, how many values agree in which way, lines on what is wrong)"""
    wrong, agreed = [], {"printed": 0, "rounding": 0, "long": 0}
    if theirs.version != ours.version:
        wrong.append(f"version {theirs.version} there, {ours.version} here")
    if not theirs.documents or not ours.documents:
        wrong.append("samples are missing " + ("there" if not theirs.documents else "here"))
    if theirs.documents.keys() != ours.documents.keys():
        wrong.append(f"{len(theirs.documents)} documents there, {len(ours.documents)} here")
    differences, beyond, decided = [], [], []
    for number in sorted(theirs.documents.keys() & ours.documents.keys()):
        (requests, values, accuracies), (our_requests, our_values, our_accuracies) = (
            theirs.documents[number],
            ours.documents[number],
        )
        if requests != our_requests or len(values) != len(our_values):
            wrong.append(
                f"document {number}: other requests: {str(requests)[:200]} there, {str(our_requests)[:200]} here"
            )
            continue
        for x, y in zip(values, our_values):
            difference = abs(x - y) if x != y else 0.0
            differences.append(difference)
            if difference <= tolerance:
                continue
            if difference <= abs(x) * FP32:
                agreed["long"] += 1
            else:  # a NaN too
                beyond.append(difference)
        if accuracies != our_accuracies:
            decided.append(number)
    if decided:
        wrong.append(
            f"decided otherwise in documents {', '.join(map(str, decided[:10]))}{' ...' if len(decided) > 10 else ''}"
        )
    if beyond:
        wrong.append(
            f"{len(beyond)} requests' log-likelihoods differ by more than {tolerance:g}, one by {beyond[0]:.2e}"
        )
    for name, value in theirs.metrics.items():
        how = agreement(name, value, ours.metrics.get(name, "missing"))
        if not how:
            wrong.append(f"{name}: {value} there, {ours.metrics.get(name, 'missing')} here")
        elif value != "N/A":
            agreed[how] += 1
    return differences, agreed, wrong[:20]


def compare(theirs, ours, tolerance=1e-3, out=sys.stdout):
    """Prints a table and a verdict; returns the exit code."""
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
            state += f", {agreed['rounding']} to fp32's rounding"
        if not wrong and agreed["long"]:
            state += (
                f"; {agreed['long']} requests differ by more than {tolerance:g}, "
                "within fp32's rounding of their own size"
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
    parser.add_argument("--lazy", required=True, action="append", help="folder with those of `lazy eval`")
    parser.add_argument(
        "--tolerance", type=float, default=1e-3, help="of a request's log-likelihood (default %(default)s)"
    )
    arguments = parser.parse_args()
    return compare(load(arguments.harness), load(arguments.lazy), arguments.tolerance)


if __name__ == "__main__":
    sys.exit(main())
