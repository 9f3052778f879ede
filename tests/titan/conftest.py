"""Finds torchtitan in the environment or in .deps/torchtitan, where scripts/setup.sh test installs it."""

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEPS = ROOT / ".deps" / "torchtitan"
if importlib.util.find_spec("lazy_attention") is None:  # neither installed nor on PYTHONPATH
    package = str(ROOT / "python")
    sys.path.insert(0, package)
    os.environ["PYTHONPATH"] = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
if importlib.util.find_spec("torchtitan") is None and DEPS.is_dir():
    sys.path.append(str(DEPS))  # last, so that packages of the environment have precedence

SHAPE = dict(
    vocab_size=258,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=128,
    bos_token_id=256,
    eos_token_id=257,
)


@pytest.fixture(scope="session")
def titan_corpus(lazy_binary, tmp_path_factory):
    """Returns a corpus of several shards whose documents have 1 to 400 tokens."""
    folder = tmp_path_factory.mktemp("corpus")
    words = random.Random(5)
    texts = ("".join(words.choices("abcdefgh \n", k=words.randint(1, 400))) for _ in range(120))
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    subprocess.run(
        [lazy_binary, "data", "prepare", "text.jsonl", "--output", "corpus", "--tokenizer", "bytes"]
        + ["--shard-size", "10kb"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    assert len(list((folder / "corpus").glob("train-*.bin"))) > 1
    return folder / "corpus"


@pytest.fixture(scope="session")
def lazy_folder(tmp_path_factory):
    """Returns a model folder with a gate, a sliding window and per-head parameters that differ between heads."""
    import torch
    from lazy_attention.hf import LazyConfig, LazyForCausalLM
    from lazy_attention.per_head import read

    torch.manual_seed(1)
    lazy = dict(distance_bias_window=16, distance_bias_init_std=0.5, attention_gate="head", sliding_window=40)
    model = LazyForCausalLM(LazyConfig(**SHAPE, **lazy, initializer_range=0.2))
    with torch.no_grad():
        for layer in model.model.layers:  # values that bf16 would round
            read(layer.attn, "softmax_offset").copy_(torch.tensor([-0.99871, -0.7, -0.3, 0.1]))
    folder = tmp_path_factory.mktemp("lazy") / "model"
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory):
    """Returns the folder of a softmax model with scaled RoPE."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(2)
    rope = dict(rope_type="llama3", rope_theta=500.0, factor=4.0, original_max_position_embeddings=64)
    rope |= dict(low_freq_factor=1.0, high_freq_factor=4.0)
    config = LlamaConfig(**SHAPE, rope_parameters=rope, initializer_range=0.2, tie_word_embeddings=False)
    folder = tmp_path_factory.mktemp("llama") / "model"
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def run_titan(tmp_path_factory):
    """Returns a function that runs the cases {name: (ranks, arguments)} with torchtitan's trainer. It returns the
    folder of results and {name: [metrics of each step]}."""

    def run(cases):
        work = tmp_path_factory.mktemp("titan")
        listed = [
            dict(name=name, ranks=ranks, arguments=[*arguments, f"--job.dump_folder={work / name / 'dump'}"])
            for name, (ranks, arguments) in cases.items()
        ]
        (work / "cases.json").write_text(json.dumps(listed).replace("WORK", str(work)))
        python_path = [str(ROOT / "python"), os.environ.get("PYTHONPATH", ""), str(DEPS)]
        result = subprocess.run(
            [sys.executable, Path(__file__).with_name("run_cases.py"), work / "cases.json", work],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, python_path))},
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-4000:]
        print(result.stdout)
        # With pipeline parallelism only the last rank has the loss.
        last = {name: work / name / f"metrics.{ranks - 1}.jsonl" for name, (ranks, _) in cases.items()}
        return work, {name: [json.loads(line) for line in path.open()] for name, path in last.items()}

    return run
