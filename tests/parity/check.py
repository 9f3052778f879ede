#!/usr/bin/env python3
"""`lazy eval` on the tiny model and the rows of tests/parity/data, against lm-evaluation-harness.

check.py recorded --lazy build/lazy      against the figures in expected/harness.json (standard library only)
check.py live --lazy build/lazy          against the harness itself, run by LAZY_LM_EVAL_PYTHON; 77 (skipped) without it
check.py record                          writes expected/harness.json, by an interpreter with lm_eval 0.4.13
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import compare
import rows
import tiny_model

HERE = Path(__file__).parent
EXPECTED = HERE / "expected" / "harness.json"
SKIPPED = 77


def record(model):
    import harness

    recorded = {"lm_eval": harness.VERSION, "runs": {}}
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
    # A line a task and a document, so that a change shows as a change.
    text = json.dumps(recorded, indent=1, ensure_ascii=False)
    EXPECTED.write_text(text + "\n", encoding="utf-8")
    return 0


def expected_runs(name):
    tasks = json.loads(EXPECTED.read_text(encoding="utf-8"))["runs"][name]
    return {
        task: compare.Run(run["metrics"], run["version"], {int(n): tuple(d) for n, d in run["documents"].items()})
        for task, run in tasks.items()
    }


def recorded(lazy, model):
    status = 0
    for name in ("no_bos", "bos"):
        with tempfile.TemporaryDirectory() as folder:
            command = [
                lazy,
                "eval",
                model,
                "--tasks",
                ",".join(rows.TASKS),
                "--data",
                str(HERE / "data"),
                "--log-samples",
                "--output",
                folder,
                *(["--bos"] if name == "bos" else []),
            ]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            print(f"{name}:")
            status = max(status, compare.compare(expected_runs(name), compare.load([folder])))
    return status


def live(lazy, model):
    python = os.environ.get("LAZY_LM_EVAL_PYTHON")
    if not python:
        print("LAZY_LM_EVAL_PYTHON is unset (an interpreter with lm_eval 0.4.13): live comparison skipped")
        return SKIPPED
    if (
        subprocess.run(
            [python, "-c", "import lm_eval, torch, transformers, accelerate"], stderr=subprocess.DEVNULL
        ).returncode
        != 0
    ):
        print(f"{python} does not import lm_eval, torch, transformers and accelerate: live comparison skipped")
        return SKIPPED
    status = 0
    with tempfile.TemporaryDirectory() as cache:
        for bos in ([], ["--bos"]):
            status = max(
                status,
                subprocess.run(
                    [
                        python,
                        str(HERE / "run.py"),
                        "--model",
                        model,
                        "--data",
                        str(HERE / "data"),
                        "--lazy",
                        lazy,
                        "--cache",
                        cache,
                        *bos,
                    ]
                ).returncode,
            )
    return status


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["recorded", "live", "record"])
    p.add_argument("--lazy", default="build/lazy", help="the lazy program (default %(default)s)")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tiny_model.write(folder)
        return record(folder) if a.what == "record" else {"recorded": recorded, "live": live}[a.what](a.lazy, folder)


if __name__ == "__main__":
    sys.exit(main())
