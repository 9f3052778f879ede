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


@pytest.fixture
def uptrain(root, lazy_binary, tmp_path):
    """Starts `lazy uptrain model --output out` in tmp_path, with a Llama-like model that has random weights and a
    tokenizer trained on the documentation."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    corpus = tmp_path / "tokenizer-corpus"
    command = [lazy_binary, "data", "prepare", root / "docs", "--output", corpus, "--train-tokenizer", "2048"]
    subprocess.run(command, check=True, capture_output=True)
    torch.manual_seed(0)
    sizes = {"vocab_size": 2048, "hidden_size": 256, "intermediate_size": 704, "max_position_embeddings": 256}
    heads = {"num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4}
    config = transformers.LlamaConfig(**sizes, **heads, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    shutil.copytree(corpus / "tokenizer", tmp_path / "model", dirs_exist_ok=True)

    def start(*arguments):
        command = [lazy_binary, "uptrain", "model", *arguments, "--output", "out", "--device", "cpu"]
        return subprocess.Popen(
            [*map(str, command), "--validation", "0.1"],
            cwd=tmp_path,
            env=os.environ | {"LAZY_PYTHON": sys.executable},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


def finished(process):
    """Waits for the process. Returns its exit code, standard output and standard error."""
    output, errors = process.communicate(timeout=1200)
    return process.returncode, output, errors


def test_uptrain_can_be_interrupted_continued_and_repeated(root, uptrain, tmp_path):
    out = tmp_path / "out"
    arguments = ["--text", root / "docs", "--tokens", "160k", "--control", "--seq-len", LENGTH, "--batch-tokens", 2048]
    arguments += ["--window", 64, "--lr", "3e-3", "--lengths", "128,256"]

    # Interrupt the first training with SIGINT.
    process = uptrain(*arguments)
    while not (out / "runs" / "softmax-seed1" / "log.jsonl").exists() and process.poll() is None:
        time.sleep(0.1)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
    code, _, errors = finished(process)
    assert code == 128 + signal.SIGINT, errors
    assert not (out / "runs" / "lazy-seed1").exists()

    code, _, errors = finished(uptrain(*arguments))
    assert code == 0, errors
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
    # transformers and the program `lazy` need this file to load the model.
    assert (out / "runs" / "lazy-seed1" / "model" / "config.json").exists()

    # A second call computes nothing.
    records = {path: path.stat().st_mtime_ns for path in (out / "steps").glob("*.json")}
    code, _, errors = finished(uptrain(*arguments))
    assert code == 0, errors
    assert {path: path.stat().st_mtime_ns for path in (out / "steps").glob("*.json")} == records
    if (out / "report.html").exists():  # it only exists if the Python packages of the report are installed
        assert (out / "report.html").read_text(encoding="utf-8").count("<svg") == 5


def test_single_text_file_works_and_rejected_tokens_can_be_lowered(root, uptrain, tmp_path):
    out = tmp_path / "out"
    shutil.copy(root / "docs/guides/serve.md", tmp_path / "book.txt")
    arguments = ["--text", "book.txt", "--seq-len", 64, "--batch-tokens", 512]
    # The first number is too large for the bytes of the text, and the second number for its tokens.
    for tokens in ("100M", "60k"):
        assert not out.exists(), "a rejected call must not create the output folder"
        code, _, errors = finished(uptrain(*arguments, "--tokens", tokens))
        assert code == 2 and "--tokens" in errors.splitlines()[-1], errors
    splits = json.loads((out / "corpus" / "corpus.json").read_text())["splits"]
    assert splits["validation"]["tokens"] > 64
    code, output, errors = finished(uptrain(*arguments, "--tokens", "10k", "--dry-run"))
    assert code == 0, errors
    *lines, last = output.splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(1, len(lines) + 1)) and str(len(lines)) in last
    assert "finished" in lines[0] and "about" in lines[-1], output
    assert not (out / "runs").exists() and not (out / "converted").exists()
    code, _, errors = finished(uptrain(*arguments, "--tokens", "10k", "--only", "report"))
    assert code == 0, errors
    assert len(json.loads((out / "results.json").read_text())["unfinished"]) == len(lines) - 3
