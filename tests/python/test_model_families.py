"""Tests of `lazy export`, `lazy sinks` and `lazy serve` with SmolLM3, OLMo 2, Phi-3, Gemma 2 and Gemma 3 folders that
transformers has written."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    Olmo2Config,
    Phi3Config,
    SmolLM3Config,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from serving import Server  # noqa: E402

SHAPE = dict(
    vocab_size=320,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
    initializer_range=0.2,
)
CONFIGS = {
    "smollm3": SmolLM3Config(**SHAPE),
    "olmo2": Olmo2Config(**SHAPE),
    "phi3": Phi3Config(**SHAPE, sliding_window=9, partial_rotary_factor=0.5),
    "phi3_longrope": Phi3Config(
        **SHAPE,
        original_max_position_embeddings=26,  # shorter than the generated text, so that the long factors are also used
        partial_rotary_factor=0.75,
        rope_scaling={"type": "longrope", "short_factor": [1.0, 1.2, 2.0], "long_factor": [1.5, 6.0, 30.0]},
    ),
    "gemma2": Gemma2Config(**SHAPE, head_dim=8, sliding_window=9, attn_logit_softcapping=1.5),
    "gemma3": Gemma3TextConfig(**SHAPE, head_dim=8, sliding_window=9, sliding_window_pattern=2),
}
PROMPT = list(range(5, 25))


@pytest.fixture(scope="module", params=CONFIGS)
def folder(request, root, tmp_path_factory):
    """A model folder with random weights and a tokenizer with 320 tokens."""
    folder = tmp_path_factory.mktemp(request.param) / "model"
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(CONFIGS[request.param]).save_pretrained(folder)
    for file in (root / "tests/compatibility/v0.1/lazy/model").glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder


def logits(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([PROMPT])).logits


def test_exported_folder_has_equal_logits_in_transformers(lazy_binary, folder, tmp_path):
    subprocess.run(
        [lazy_binary, "export", folder, tmp_path / "copy", "--dtype", "fp32"], check=True, capture_output=True
    )
    assert torch.equal(logits(tmp_path / "copy"), logits(folder))
    source, copy = (json.loads((path / "config.json").read_text()) for path in (folder, tmp_path / "copy"))
    for key in ("model_type", "architectures", "pad_token_id", "num_key_value_heads"):
        assert copy[key] == source[key], key


def test_sinks_measures_the_folder(lazy_binary, folder, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The sun rose over the quiet village, and nobody was awake to see it. " * 40)
    out = tmp_path / "sinks.json"
    command = [lazy_binary, "sinks", folder, "--text", text, "--json", out, "--samples", "2"]
    subprocess.run([*command, "--length", "32", "--measures", "all"], check=True, capture_output=True)
    assert json.loads(out.read_text())


def test_served_greedy_text_matches_transformers(lazy_binary, folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([PROMPT])
    made = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12, eos_token_id=None, pad_token_id=0
    )
    server = Server(lazy_binary, folder)
    try:
        answer = server.complete(
            model="tiny", prompt=PROMPT, max_tokens=12, temperature=0, ignore_eos=True, return_token_ids=True
        )
    finally:
        server.stop()
    assert answer["choices"][0]["token_ids"] == made[0, len(PROMPT) :].tolist()
