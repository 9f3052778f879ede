#!/usr/bin/env python3
"""Reads what an earlier version wrote, with today's program, and compares the results.

Usage: read_old_files.py LAZY_BINARY FOLDER
Losses are compared to 1e-4: the sums of another processor are rounded in another order.
"""

import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

lazy, old = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()


def run(*arguments, folder):
    done = subprocess.run([lazy, *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"lazy {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def losses(log):
    """Loss by step; the last entry of a step counts."""
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    return {e["step"]: e["loss_metrics/global_avg_loss"] for e in entries if "loss_metrics/global_avg_loss" in e}


def expect_close(what, found, expected):
    if not math.isclose(found, expected, rel_tol=1e-4):
        sys.exit(f"{what}: expected {expected}, found {found}")


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name) / "files"
    shutil.copytree(old, folder)

    run("data", "inspect", "corpus", folder=folder)

    for model in ("lazy", "delta"):
        # A model folder, evaluated.
        run("eval", f"{model}/model", "--corpus", "corpus", "--bos", "--output", "new.json", folder=folder)
        new, before = (json.loads((folder / file).read_text()) for file in ("new.json", f"{model}/eval.json"))
        for key, value in before["results"]["heldout"].items():
            if key.startswith("loss,"):
                expect_close(f"{model}: held-out {key}", new["results"]["heldout"][key], value)
        # A checkpoint, resumed: steps 4 to 6 again.
        expected = losses(old / model / "log.jsonl")
        (folder / model / "log.jsonl").write_text("")
        shutil.rmtree(folder / model / "model")
        run("train", f"{model}/config.toml", "--resume", folder=folder)
        found = losses(folder / model / "log.jsonl")
        if sorted(found) != [4, 5, 6]:
            sys.exit(f"{model}: expected steps 4 to 6 after resuming, found {sorted(found)}")
        for step, loss in found.items():
            expect_close(f"{model}: loss of step {step}", loss, expected[step])

    # The records of a recipe: every step counts as done, and what is found is the same. The interval is not: since
    # then it is over seeds, of which the old records have one. Nor is the held-out loss: its sequences had other
    # separators than the training's, so that it is to be measured again.
    run("repro", "fig10", "--scale", "tiny", "--corpus", "corpus", "--device", "cpu", "--report", folder=folder)
    new, before = (json.loads((place / "repro/tiny/fig10.json").read_text()) for place in (folder, old))
    for report in (new, before):
        for key in ("command", "date", "version", "unfinished"):  # of the report, not of the results
            del report[key]
        report["steps"] = [step for step in report["steps"] if step["kind"] != "heldout"]
        report["findings"] = [
            [f["claim"], f["paper"], f["verdict"], f["ours"]["value"], f["ours"]["unit"]] for f in report["findings"]
        ]
    if new != before:
        sys.exit(f"repro: expected {json.dumps(before)[:2000]}\nfound {json.dumps(new)[:2000]}")

    run("report", "lazy", "delta", "--output", "page.html", folder=folder)
    print("files of the earlier version were read, and the results are the same")
