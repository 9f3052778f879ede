#!/usr/bin/env python3
"""Writes expected/harness.json: results of lm-evaluation-harness for the tiny model and the rows of tests/parity/data.

    python tests/parity/record.py        needs lm_eval 0.4.13, torch, transformers and accelerate

test_parity.py compares `lazy eval` with the file.
"""

import json
import tempfile
from pathlib import Path

import compare
import rows
import tiny_model

HERE = Path(__file__).parent
EXPECTED = HERE / "expected" / "harness.json"


def expected_runs(name):
    """Returns the recorded {task: Run}. name: "bos" (with a BOS token before every text) or "no_bos"."""
    tasks = json.loads(EXPECTED.read_text(encoding="utf-8"))["runs"][name]
    return {
        task: compare.Run(run["metrics"], run["version"], {int(n): tuple(d) for n, d in run["documents"].items()})
        for task, run in tasks.items()
    }


def main():
    import harness

    recorded = {"lm_eval": harness.VERSION, "runs": {}}
    with tempfile.TemporaryDirectory() as model:
        tiny_model.write(model)
        for bos in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                harness.evaluate(harness.load(model, bos=bos), HERE / "data", rows.TASKS, folder)
                runs = compare.load([folder])
            recorded["runs"]["bos" if bos else "no_bos"] = {
                task: {
                    "version": run.version,
                    "metrics": run.metrics,
                    "documents": {number: list(document) for number, document in run.documents.items()},
                }
                for task, run in runs.items()
            }
    EXPECTED.parent.mkdir(exist_ok=True)
    # Write one line per value, so that `git diff` shows which values have changed.
    EXPECTED.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
