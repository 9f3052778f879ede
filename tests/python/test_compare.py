"""Tests benchmarks/compare.py with a mock program that writes the same files as `lazy`."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from naming import naming

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).resolve().parents[2]
LAZY = (
    r"""#!/usr/bin/env python3
import json, pathlib, sys, time
words = sys.argv[1:]
after = lambda key: words[words.index(key) + 1]
pathlib.Path(__file__).with_name("calls").open("a").write(" ".join(words) + "\n")
if words[0] == "train":
    run = pathlib.Path([w for w in words if w.startswith("training.output=")][0].split("=")[1])
    name = pathlib.Path(words[1]).stem
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    loss = {"good": 3.0, "better": 2.0, "slow": 5.0}.get(name, 4.0)
    lines = [{"step": 1, "grad_norm": 9.0, "throughput(tps)": 100.0}, """
    r"""{"step": 5, "grad_norm": 0.4, "throughput(tps)": 4567.0},
             {"step": 10, "grad_norm": 0.5, "throughput(tps)": 5000.0, "validation_metrics/loss": loss}]
    (run / "log.jsonl").write_text("".join(json.dumps(l) + "\n" for l in lines))
    if name == "broken" or (name == "slow" and "--resume" not in words):
        time.sleep(30 if name == "slow" else 0)
        sys.exit("no such thing")
    (run / "model").mkdir()
    (run / "model" / "config.json").write_text(json.dumps({"model_type": "retnet" if name == "better" else "lazy"}))
elif words[0] == "sinks":
    shares = {"sink_ratio": 0.1, "density": 0.25, "alive_fraction": 1.0}
    pathlib.Path(after("--json")).write_text(json.dumps({"overall": shares}))
elif "--lengths" in words:
    lengths = [{"length": int(n), "loss": 3.14} for n in after("--lengths").split(",")]
    pathlib.Path(after("--output")).write_text(json.dumps({"results": {"heldout": {"models": [{"lengths": lengths}]}}}))
else:
    tasks = {"results": {"wikitext": {"word_perplexity,none": 123.4}}, "average": {"acc": 0.31}}
    pathlib.Path(after("--output")).write_text(json.dumps(tasks))
"""
)


VARIANTS = "[variants.good]\ntraining.lr = 1\n[variants.better]\ntraining.lr = 2\n"


@pytest.fixture
def run(tmp_path):
    (tmp_path / "lazy").write_text(LAZY)
    os.chmod(tmp_path / "lazy", 0o755)

    def call(*names, more=()):
        (tmp_path / "calls").write_text("")
        configs = [tmp_path / f"{name}.toml" for name in names]
        for config in configs:
            config.write_text(VARIANTS if config.stem == "variants" else "")
        command = [
            sys.executable,
            ROOT / "benchmarks/compare.py",
            *configs,
            "--corpus",
            "c",
            "--data",
            "d",
            "--gpus",
            "0",
            *more,
        ]
        command += ["--lengths", "64,128", "--lazy", tmp_path / "lazy", "--output", tmp_path / "out"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        table = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
        return (tmp_path / "calls").read_text().splitlines(), table[2:], done.stdout

    return call


def test_runs_every_step_once_and_sorts_the_table_by_loss(run):
    calls, table, _ = run("good", "better")
    assert [c.split()[0] + ("s" if "--lengths" in c else "") for c in calls] == [
        "train",
        "evals",
        "sinks",
        "eval",
        "train",
        "evals",
        "eval",
    ]
    assert table[0] == [
        "| better",
        "2.000",
        "4.6k",
        "0.5",
        "123",
        "31.0",
        "3.14 / 3.14",
        "",
        "",
        " |",
    ]  # the sink measures are empty, because a recurrence has no attention sinks
    assert table[1] == ["| good", "3.000", "4.6k", "0.5", "123", "31.0", "3.14 / 3.14", "10.0 %", "25.0 %", "100.0 % |"]
    calls, again, _ = run("good", "better")
    assert calls == [] and again == table


def test_all_variants_of_a_file_are_compared(run):
    calls, table, _ = run("variants")
    trained = [pathlib.Path(call.split()[1]).name for call in calls if call.startswith("train")]
    assert trained == ["variants.toml+good", "variants.toml+better"]
    assert sorted(row[0] for row in table) == ["| better", "| good"]


def test_failure_is_reported_and_stops_only_one_model(run):
    calls, table, printed = run("broken", "good")
    assert re.search(naming("train", "broken", 1, "broken.train.out"), printed), printed
    assert [row[0] for row in table] == ["| good", "| broken"]
    assert re.search(naming("4.000", 10), table[1][1]), table


def test_interrupted_training_resumes_from_its_checkpoint(run):
    calls, table, _ = run("slow", "good", more=["--seconds", "5"])
    assert len(calls) == 1 and re.search(naming("5.000", 10), table[0][1]), table
    calls, table, _ = run("slow", "good")
    assert "--resume" in calls[0] and [row[1] for row in table] == ["3.000", "5.000"]


def test_task_limit_only_applies_to_tasks(run):
    calls, _, _ = run("good", more=["--task-limit", "500"])
    limits = {
        c.split()[0] + (" lengths" if "--lengths" in c else ""): c.split("--limit ")[1].split()[0]
        for c in calls
        if "--limit " in c
    }
    assert limits == {"eval lengths": "64", "eval": "500"}


def test_training_and_evaluation_run_concurrently(run, tmp_path):
    program = tmp_path / "lazy"
    program.write_text(
        LAZY.replace(
            "words = sys.argv[1:]",
            """words = sys.argv[1:]
def tell(what):
    pathlib.Path(sys.argv[0]).with_name("times").open("a").write(f"{what} {words[0]} {pathlib.Path(words[1]).name}\\n")
import atexit
tell("begin"), atexit.register(tell, "end"), time.sleep(1)""",
        )
    )
    run("good", "better", "third", more=["--jobs", "2", "--trainings", "1"])
    most, beside, now = 0, False, {"train": 0, "eval": 0, "sinks": 0}
    for what, verb, _ in (line.split() for line in (tmp_path / "times").read_text().splitlines()):
        now[verb] += 1 if what == "begin" else -1
        most, beside = max(most, now["train"]), beside or (now["train"] and now["eval"])
    assert most == 1 and beside
