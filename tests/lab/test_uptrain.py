"""Test of `lazy uptrain` on a random model with five million parameters. The command is interrupted, continued, and
called again after it has finished."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow
LENGTH = 128


def write_model(root, lazy_binary, folder):
    """Writes a Llama-like model folder with random weights and a tokenizer that is trained on the documentation."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    corpus = folder.with_name("tokenizer-corpus")
    command = [lazy_binary, "data", "prepare", root / "docs", "--output", corpus, "--train-tokenizer", "2048"]
    subprocess.run(command, check=True, capture_output=True)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    shutil.copytree(corpus / "tokenizer", folder, dirs_exist_ok=True)


def test_uptrain_can_be_interrupted_continued_and_repeated(root, lazy_binary, tmp_path):
    model, out = tmp_path / "model", tmp_path / "out"
    write_model(root, lazy_binary, model)
    command = [lazy_binary, "uptrain", model, "--text", root / "docs", "--tokens", "160k", "--output", out, "--control"]
    command += ["--validation", "0.1", "--seq-len", LENGTH, "--batch-tokens", "2048", "--window", "64", "--lr", "3e-3"]
    command = [str(word) for word in [*command, "--lengths", "128,256", "--device", "cpu"]]
    environment = os.environ | {"LAZY_PYTHON": sys.executable}

    def call():
        return subprocess.Popen(
            command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    # Interrupt the first training with SIGINT.
    with call() as process:
        while not (out / "runs" / "softmax-seed1" / "log.jsonl").exists() and process.poll() is None:
            time.sleep(0.1)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert not (out / "runs" / "lazy-seed1").exists()

    with call() as process:
        _, errors = process.communicate(timeout=1200)
    assert process.returncode == 0, errors
    steps = [line.split() for line in errors.splitlines() if line.startswith("lazy uptrain: step ")]
    [total] = {int(total.rstrip(":")) for _, _, _, _, _, total, *_ in steps}
    assert [int(number) for _, _, _, number, *_ in steps] == list(range(int(steps[0][3]), total + 1))
    results = json.loads((out / "results.json").read_text())
    before, untrained, softmax, lazy = results["models"]
    assert [model["model"] for model in results["models"]] == ["before", "untrained", "softmax", "lazy"]
    # Both models have learned, with the same number of tokens. Only the Lazy model has weights that the offset removed.
    for trained in (softmax, lazy):
        assert trained["heldout"]["loss"] < before["heldout"]["loss"] - 0.5
        assert trained["training"]["loss"][-1][0] == results["steps"]
    alive = [model["attention"]["overall"]["alive_fraction"] for model in results["models"]]
    assert alive[0] == alive[2] == 1 and alive[1] < 0.9 and alive[3] < 0.9
    assert [len(heads) for heads in lazy["attention"]["per_head"]["alive_fraction"]] == [8] * 6
    assert lazy["positions"][-1]["to"] == 256
    for model in (before, lazy):
        assert [speed["length"] for speed in model["speed"]] == [128, 256]
        assert all(speed["seconds_per_token"] > 0 for speed in model["speed"])
    # Check that the files exist that transformers and the program `lazy` need to load the models.
    assert (out / "runs" / "lazy-seed1" / "model" / "config.json").exists()

    # A second call computes nothing.
    records = {path: path.stat().st_mtime_ns for path in (out / "steps").glob("*.json")}
    with call() as process:
        assert process.wait(timeout=120) == 0, process.stderr.read()
    assert {path: path.stat().st_mtime_ns for path in (out / "steps").glob("*.json")} == records
    if (out / "report.html").exists():  # it only exists if the Python packages of the report are installed
        assert (out / "report.html").read_text(encoding="utf-8").count("<svg") == 5


def test_single_text_file_works_and_rejected_tokens_can_be_lowered(root, lazy_binary, tmp_path):
    write_model(root, lazy_binary, tmp_path / "model")
    (tmp_path / "book.txt").write_text(
        (root / "docs/guides" / "serve.md").read_text(encoding="utf-8"), encoding="utf-8"
    )
    command = [lazy_binary, "uptrain", "model", "--text", "book.txt", "--seq-len", "64", "--batch-tokens", "512"]
    command += ["--validation", "0.1", "--device", "cpu", "--output", "out"]
    environment = os.environ | {"LAZY_PYTHON": sys.executable}

    def call(*more):
        return subprocess.run([*command, *more], cwd=tmp_path, env=environment, capture_output=True, text=True)

    refused = call("--tokens", "100M")
    assert refused.returncode == 2 and "--tokens" in refused.stderr.splitlines()[-1], refused.stderr
    assert not (tmp_path / "out").exists(), "a rejected call must not create the output folder"
    refused = call("--tokens", "60k")
    assert refused.returncode == 2 and "--tokens" in refused.stderr.splitlines()[-1], refused.stderr
    splits = json.loads((tmp_path / "out" / "corpus" / "corpus.json").read_text())["splits"]
    assert splits["validation"]["tokens"] > 64
    planned = call("--tokens", "10k", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    lines = planned.stdout.splitlines()
    steps = [line.split(maxsplit=1)[0] for line in lines[:-1]]
    assert steps == [str(n) for n in range(1, len(lines))] and str(len(steps)) in lines[-1]
    assert "finished" in lines[0] and "about" in lines[-2], planned.stdout
    assert not (tmp_path / "out" / "runs").exists() and not (tmp_path / "out" / "converted").exists()
    corrected = call("--tokens", "10k", "--only", "report")
    assert corrected.returncode == 0, corrected.stderr
    assert len(json.loads((tmp_path / "out" / "results.json").read_text())["unfinished"]) == len(steps) - 3


def test_lazy_model_is_rejected_before_files_are_written(root, lazy_binary, tmp_path):
    model = root / "tests/compatibility/v0.1/lazy/model"
    (tmp_path / "book.txt").write_text("A text. " * 10000)
    command = [lazy_binary, "uptrain", model, "--text", "book.txt", "--tokens", "200k", "--output", "out"]
    environment = os.environ | {"LAZY_PYTHON": sys.executable}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "elastic" in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()
