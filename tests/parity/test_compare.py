"""The comparison itself: a difference of any kind must end in FAIL. Standard library only."""

import copy
import io
import json
import tempfile
import unittest
from pathlib import Path

import compare


def sample(number, values, **metrics):
    arguments = {f"gen_args_{i}": {"arg_0": f"Question {number}", "arg_1": f" {i}"} for i in range(len(values))}
    return {
        "doc_id": number,
        "arguments": arguments,
        "filtered_resps": [[str(v), "False"] for v in values],
        "metrics": list(metrics),
        **metrics,
    }


def write(folder, results, samples, date="2026-01-02T03-04-05.000006"):
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / f"results_{date}.json").write_text(json.dumps(results))
    lines = "".join(json.dumps(s) + "\n" for s in samples)
    (Path(folder) / f"samples_piqa_{date}.jsonl").write_text(lines)


class Compare(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.results = {
            "results": {"piqa": {"alias": "piqa", "acc,none": 0.5, "acc_stderr,none": 0.25, "acc_norm,none": 1.0}},
            "versions": {"piqa": 1.0},
        }
        self.samples = [sample(0, [-3.25, -4.5], acc=1.0), sample(1, [-1.0, -2.0], acc=0.0)]
        write(self.folder.name + "/theirs/model", self.results, self.samples)

    def tearDown(self):
        self.folder.cleanup()

    def compare(self, results=None, samples=None, tolerance=1e-3):
        write(self.folder.name + "/ours", results or self.results, samples or self.samples)
        out = io.StringIO()
        runs = [compare.load([f"{self.folder.name}/{side}"]) for side in ("theirs", "ours")]
        return compare.compare(*runs, tolerance, out), out.getvalue()

    def changed(self, number, **fields):
        samples = copy.deepcopy(self.samples)
        samples[number] |= fields
        return samples

    def test_equal(self):
        status, text = self.compare()
        self.assertEqual(status, 0)
        self.assertIn("parity: PASS: 1 tasks, 4 requests, largest difference 0.00e+00", text)
        status, text = self.compare(samples=self.changed(0, filtered_resps=[["-3.2505", "False"], ["-4.5", "False"]]))
        self.assertEqual(status, 0)
        self.assertIn("largest difference 5.00e-04, mean 1.25e-04", text)

    def test_differences(self):
        def changed_results(section, **values):
            results = copy.deepcopy(self.results)
            results[section]["piqa"] = results[section]["piqa"] | values if section == "results" else values["version"]
            return results

        cases = {
            "1 requests' log-likelihoods differ by more than 0.001": {
                "samples": self.changed(1, filtered_resps=[["-1.0", "False"], ["-2.002", "False"]])
            },
            "more than 0.001, one by nan": {
                "samples": self.changed(1, filtered_resps=[["-1.0", "False"], ["nan", "False"]])
            },
            "decided otherwise in documents 1": {"samples": self.changed(1, acc=1.0)},
            "document 0: other requests": {"samples": self.changed(0, arguments=self.samples[1]["arguments"])},
            "2 documents there, 1 here": {"samples": self.samples[:1]},
            "acc,none: 0.5 there, 0.5001 here": {"results": changed_results("results", **{"acc,none": 0.5001})},
            "acc_stderr,none: 0.25 there": {"results": changed_results("results", **{"acc_stderr,none": "N/A"})},
            "version 1.0 there, 2.0 here": {"results": changed_results("versions", version=2.0)},
        }
        for expected, changes in cases.items():
            status, text = self.compare(**changes)
            self.assertEqual(status, 1, expected)
            self.assertIn(expected, text)
            self.assertIn("parity: FAIL: 1 tasks", text)

    def test_long_text(self):
        """fp32 has no 1e-3 at -50000: half its spacing there passes, and is said; twice its spacing does not."""
        self.samples[1] = sample(1, [-50000.0, -2.0], acc=0.0)
        write(self.folder.name + "/theirs/model", self.results, self.samples)
        status, text = self.compare(
            samples=self.changed(1, filtered_resps=[["-50000.002", "False"], ["-2.0", "False"]])
        )
        self.assertEqual(status, 0, text)
        self.assertIn("1 requests differ by more than 0.001, within fp32's rounding", text)
        status, text = self.compare(
            samples=self.changed(1, filtered_resps=[["-50000.008", "False"], ["-2.0", "False"]])
        )
        self.assertEqual(status, 1, text)

    def test_missing(self):
        self.assertEqual(compare.compare({}, {}, out=io.StringIO()), 2)
        out = io.StringIO()
        self.assertEqual(compare.compare(compare.load([self.folder.name + "/theirs"]), {}, out=out), 1)
        self.assertIn("not evaluated here", out.getvalue())

    def test_agreement_of_values(self):
        self.assertEqual(compare.agreement("acc,none", 0.123441, 0.123449), "printed")
        self.assertIsNone(compare.agreement("acc,none", 0.1234, 0.1235))
        self.assertIsNone(compare.agreement("acc,none", 0.5, "missing"))
        self.assertEqual(compare.agreement("acc_stderr,none", "N/A", "N/A"), "printed")
        self.assertEqual(compare.agreement("perplexity,none", 41.98765, 41.98768), "printed")
        self.assertIsNone(compare.agreement("perplexity,none", 41.9876, 41.9877))
        self.assertEqual(compare.agreement("word_perplexity,none", 1163831.5442, 1163831.1984), "rounding")
        self.assertIsNone(compare.agreement("word_perplexity,none", 1163831.5442, 1163829.5442))
        self.assertIsNone(compare.agreement("perplexity,none", 41.9876, float("nan")))


if __name__ == "__main__":
    unittest.main()
