"""Tests that the comparison of test_parity.py detects every kind of difference."""

import copy
import io
import json
import re
from types import SimpleNamespace

import compare
import pytest
from naming import naming

RESULTS = {
    "results": {"piqa": {"alias": "piqa", "acc,none": 0.5, "acc_stderr,none": 0.25, "acc_norm,none": 1.0}},
    "versions": {"piqa": 1.0},
}


def sample(number, values, **metrics):
    arguments = {f"gen_args_{i}": {"arg_0": f"Question {number}", "arg_1": f" {i}"} for i in range(len(values))}
    return {
        "doc_id": number,
        "arguments": arguments,
        "filtered_resps": [[str(v), "False"] for v in values],
        "metrics": list(metrics),
        **metrics,
    }


SAMPLES = [sample(0, [-3.25, -4.5], acc=1.0), sample(1, [-1.0, -2.0], acc=0.0)]


def changed_sample(number, samples=SAMPLES, **fields):
    return [s | fields if n == number else s for n, s in enumerate(samples)]


def changed_result(**values):
    results = copy.deepcopy(RESULTS)
    results["results"]["piqa"] |= values
    return results


def responses(*values):
    return [[value, "False"] for value in values]


@pytest.fixture
def compared(tmp_path):
    """Returns a function that writes results of the harness and of `lazy eval` and compares them."""

    def load(side, results, samples):
        folder = tmp_path / side / "model"
        folder.mkdir(parents=True, exist_ok=True)
        date = "2026-01-02T03-04-05.000006"
        (folder / f"results_{date}.json").write_text(json.dumps(results))
        (folder / f"samples_piqa_{date}.jsonl").write_text("".join(json.dumps(s) + "\n" for s in samples))
        return compare.load([tmp_path / side])

    def run(results=RESULTS, samples=SAMPLES, theirs=SAMPLES, tolerance=1e-3):
        runs = load("theirs", RESULTS, theirs), load("ours", results, samples)
        differences, agreed, wrong = compare.compare_task("piqa", *(side["piqa"] for side in runs), tolerance)
        return SimpleNamespace(
            status=compare.compare(*runs, tolerance, io.StringIO()), differences=differences, agreed=agreed, wrong=wrong
        )

    return run


def test_equal_results_pass(compared):
    found = compared()
    assert (found.status, found.wrong, found.differences) == (0, [], [0] * 4)
    assert found.agreed == {"printed": 3, "rounding": 0, "long": 0}
    found = compared(samples=changed_sample(0, filtered_resps=responses("-3.2505", "-4.5")))
    assert found.status == 0 and found.differences == pytest.approx([5e-4, 0, 0, 0])


# Name -> (change of the results, values that the error message must contain).
DIFFERENCES = {
    "a log-likelihood": (dict(samples=changed_sample(1, filtered_resps=responses("-1.0", "-2.002"))), ["2.00e-03"]),
    "a NaN": (dict(samples=changed_sample(1, filtered_resps=responses("-1.0", "nan"))), ["nan"]),
    "a decision": (dict(samples=changed_sample(1, acc=1.0)), ["documents", 1]),
    "a request": (dict(samples=changed_sample(0, arguments=SAMPLES[1]["arguments"])), ["document", 0]),
    "a missing document": (dict(samples=SAMPLES[:1]), ["documents", 2, 1]),
    "a metric": (dict(results=changed_result(**{"acc,none": 0.5001})), ["acc,none", 0.5, 0.5001]),
    "a standard error": (dict(results=changed_result(**{"acc_stderr,none": "N/A"})), ["acc_stderr,none", 0.25, "N/A"]),
    "a version": (dict(results=RESULTS | {"versions": {"piqa": 2.0}}), ["version", 1.0, 2.0]),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_each_kind_of_difference_fails(compared, what):
    change, names = DIFFERENCES[what]
    found = compared(**change)
    assert found.status == 1 and len(found.wrong) == 1 and re.search(naming(*names), found.wrong[0]), found.wrong


def test_long_text_may_differ_by_fp32_rounding(compared):
    """At -50000 the distance between adjacent fp32 numbers exceeds the tolerance 1e-3. A difference of half this
    distance is accepted and counted separately; a difference of twice this distance fails."""
    theirs = [SAMPLES[0], sample(1, [-50000.0, -2.0], acc=0.0)]
    half = changed_sample(1, theirs, filtered_resps=responses("-50000.002", "-2.0"))
    found = compared(theirs=theirs, samples=half)
    assert found.status == 0 and found.agreed["long"] == 1
    twice = changed_sample(1, theirs, filtered_resps=responses("-50000.008", "-2.0"))
    assert compared(theirs=theirs, samples=twice).status == 1


def test_missing_results_fail(compared, tmp_path):
    assert compare.compare({}, {}, out=io.StringIO()) == 2
    compared()
    assert compare.compare(compare.load([tmp_path / "theirs"]), {}, out=io.StringIO()) == 1


@pytest.mark.parametrize(
    "name, there, here, expected",
    [
        ("acc,none", 0.123441, 0.123449, "printed"),
        ("acc,none", 0.1234, 0.1235, None),
        ("acc,none", 0.5, "missing", None),
        ("acc_stderr,none", "N/A", "N/A", "printed"),
        ("perplexity,none", 41.98765, 41.98768, "printed"),
        ("perplexity,none", 41.9876, 41.9877, None),
        ("word_perplexity,none", 1163831.5442, 1163831.1984, "rounding"),
        ("word_perplexity,none", 1163831.5442, 1163829.5442, None),
        ("perplexity,none", 41.9876, float("nan"), None),
    ],
)
def test_agreement_classifies_values(name, there, here, expected):
    assert compare.agreement(name, there, here) == expected
