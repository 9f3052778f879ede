"""Tests of `lazy eval`: results after an interruption, and hints for models that need BOS."""

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

TASK = """
name = "{name}"
output_type = "multiple_choice"
metrics = ["acc"]
[data]
files = ["{name}.jsonl"]
[prompt]
context = "{{{{text}}}} is"
choices = "{{{{options}}}}"
label = "{{{{label}}}}"
"""


@pytest.fixture
def model(root):
    return root / "tests/compatibility/v0.1/lazy/model"


def write_task(folder, name, documents):
    (folder / f"{name}.toml").write_text(TASK.format(name=name))
    with open(folder / f"{name}.jsonl", "w") as file:
        for n in range(documents):
            row = {"text": f"number {n} of these {n * 7} rows", "options": ["good", "bad"], "label": n % 2}
            file.write(json.dumps(row) + "\n")
    return f"{folder}/{name}.toml"


def interrupted(command, begun):
    """Sends SIGINT to a program when `begun()` is true. Returns its exit code, standard output and standard error."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(6000):
        if begun() or process.poll() is not None:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=120)
    return process.returncode, out, error


@pytest.mark.parametrize("name", ["results.json", "results"])
def test_finished_tasks_survive_an_interruption(lazy_binary, model, tmp_path, name):
    short, long = write_task(tmp_path, "short", 4), write_task(tmp_path, "long", 60000)
    output = tmp_path / name
    command = [lazy_binary, "eval", model, "--tasks", f"{short},{long}", "--data", tmp_path, "--output", output]
    final, folder = (output, tmp_path) if name.endswith(".json") else (None, output)
    found = lambda: list(folder.glob("results*.partial.json"))  # noqa: E731
    code, _, error = interrupted([*command, "--log-samples"], found)
    assert code == 128 + signal.SIGINT, error
    [file] = found()
    results = json.loads(file.read_text())
    assert list(results["results"]) == ["short"] and results["unfinished"] == [long]
    assert final is None or not final.exists(), "an interrupted run must not write the file of complete results"
    assert len(list(file.parent.glob("samples_short_*.jsonl"))) == 1
    line = error.strip().splitlines()[-1]
    assert str(file) in line and f"--tasks {long}" in line, line


def test_interruption_without_output_prints_finished_tasks(lazy_binary, model, tmp_path):
    long, text = write_task(tmp_path, "long", 60000), tmp_path / "text"
    text.write_text("a b c " * 50)
    command = [lazy_binary, "eval", model, "--text", text, "--tasks", f"heldout,{long}", "--data", tmp_path, "--json"]
    began = time.monotonic()
    code, out, error = interrupted(command, lambda: time.monotonic() - began > 2)
    assert code == 128 + signal.SIGINT, error
    assert list(json.loads(out)["results"]) == ["heldout"]


def test_complete_results_are_not_marked_partial(lazy_binary, model, tmp_path):
    tasks = ",".join([write_task(tmp_path, "one", 3), write_task(tmp_path, "two", 3)])
    command = [lazy_binary, "eval", model, "--tasks", tasks, "--data", tmp_path, "--output", tmp_path / "r.json"]
    subprocess.run(command, check=True, capture_output=True)
    results = json.loads((tmp_path / "r.json").read_text())
    assert list(results["results"]) == ["one", "two"] and "unfinished" not in results
    assert not list(tmp_path.glob("*.partial.json"))


def bos_of(lazy_binary, model, data, task, *options):
    """Runs `lazy eval` and returns a pair: the value of add_bos_token in its results, and its standard error."""
    command = [lazy_binary, "eval", model, "--tasks", task, "--data", data, "--json", *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["config"]["model_args"]["add_bos_token"], done.stderr


def test_bos_default_follows_the_tokenizer(lazy_binary, model, tmp_path):
    task = write_task(tmp_path, "task", 3)
    assert bos_of(lazy_binary, model, tmp_path, task)[0] is True
    assert bos_of(lazy_binary, model, tmp_path, task, "--no-bos")[0] is False
    plain = tmp_path / "plain"
    shutil.copytree(model, plain)
    config = Path(plain / "tokenizer_config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"add_bos_token": False}))
    if (plain / "tokenizer.json").exists():
        # otherwise the post-processor in tokenizer.json would decide whether BOS is added
        (plain / "tokenizer.json").unlink()
    assert bos_of(lazy_binary, plain, tmp_path, task)[0] is False
    assert bos_of(lazy_binary, plain, tmp_path, task, "--bos")[0] is True
    command = [lazy_binary, "eval", model, "--tasks", task, "--data", tmp_path, "--bos", "--no-bos"]
    assert subprocess.run(command, capture_output=True).returncode == 2
