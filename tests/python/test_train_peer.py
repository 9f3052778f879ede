"""Tests of the PyTorch decoders with which `lazy bench train` compares its speed. Their loss and gradients must equal
Llama's in transformers. Also tests the table rows that the command prints."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from naming import naming

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SHAPE = {"layers": 2, "width": 32, "heads": 2, "inner": 48, "vocab": 67}


def pairs(decoder, llama):
    """Yields (parameter of the decoder, corresponding weights of the Llama model)."""
    yield decoder.embedding.weight, [llama.model.embed_tokens.weight]
    yield decoder.norm.weight, [llama.model.norm.weight]
    yield decoder.head.weight, [llama.lm_head.weight]
    for ours, theirs in zip(decoder.blocks, llama.model.layers, strict=True):
        attention, mlp = theirs.self_attn, theirs.mlp
        yield ours.attention_norm.weight, [theirs.input_layernorm.weight]
        yield ours.qkv.weight, [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
        yield ours.out.weight, [attention.o_proj.weight]
        yield ours.mlp_norm.weight, [theirs.post_attention_layernorm.weight]
        yield ours.gate_up.weight, [mlp.gate_proj.weight, mlp.up_proj.weight]
        yield ours.down.weight, [mlp.down_proj.weight]


def test_decoder_matches_a_hugging_face_llama(monkeypatch):
    transformers = pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import peer_decoder

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=SHAPE["vocab"],
        hidden_size=SHAPE["width"],
        intermediate_size=SHAPE["inner"],
        num_hidden_layers=SHAPE["layers"],
        num_attention_heads=SHAPE["heads"],
        num_key_value_heads=SHAPE["heads"],
        max_position_embeddings=40,
    )
    llama = transformers.LlamaForCausalLM(config).double()
    decoder = peer_decoder.Decoder(**SHAPE, length=40, tied=False).double()
    with torch.no_grad():
        for ours, theirs in pairs(decoder, llama):
            for weight in theirs:
                weight.copy_(torch.randn_like(weight) / 4 + (weight.dim() == 1))
            ours.copy_(torch.cat(theirs))
    ids, targets = torch.randint(0, SHAPE["vocab"], (2, 3, 40)).unbind(0)
    # with chunks of 50 tokens, the last chunk is shorter
    loss = peer_decoder.PeerDecoder(decoder, compiled=False, chunk=50).loss(ids, targets)
    expected = llama(input_ids=ids, labels=ids, shift_labels=targets).loss
    (3 * loss).backward()
    (3 * expected).backward()
    # The comparison uses an fp32 tolerance although the models are in float64, because RoPE angles and the sums of the
    # loss are computed in fp32.
    torch.testing.assert_close(loss.double(), expected.double(), rtol=1e-5, atol=1e-5)
    for ours, theirs in pairs(decoder, llama):
        torch.testing.assert_close(ours.grad, torch.cat([w.grad for w in theirs]), rtol=2e-4, atol=2e-5)


@pytest.mark.slow
def test_every_peer_produces_a_row(tmp_path):
    pytest.importorskip("transformers")
    file = tmp_path / "rows.json"
    shape = "--layers 1 --width 32 --heads 2 --vocab 67 --batch 2 --length 16 --steps 2 --tied"
    command = [sys.executable, BENCHMARKS / "train_peer.py", *shape.split(), "--device", "cpu", "--no-compile"]
    done = subprocess.run([*command, "--json", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(file.read_text())
    assert [row["name"] for row in rows] == [
        f"{peer}, {precision} weights, eager" for peer in ("decoder", "transformers") for precision in ("fp32", "bf16")
    ]
    assert len({row["parameters"] for row in rows}) == 1
    assert all(row["tokens_per_second"] > 0 and row["batch"] == 2 and row["seq_len"] == 16 for row in rows)


@pytest.mark.data
def test_titans_pytorch_peer_matches_our_model(monkeypatch):
    pytest.importorskip(
        "titans_pytorch", reason="titans-pytorch is not installed (the test was written for version 0.5.5)"
    )
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import learner_peers

    peer = "titans-lmm-equal"
    rest = {"length": 128, "tied": True, "no_compile": True, "ours": os.environ["LAZY_BINARY"]}
    a = argparse.Namespace(**SHAPE, **rest, peer=[peer])
    torch.manual_seed(0)
    model, loss = learner_peers.build(a, peer)  # build() also compares the hidden states of both models
    with pytest.raises(SystemExit, match=naming(peer, "1e-4")):
        learner_peers.expect_ours(
            a, lambda folder: learner_peers.save_as_ours(a, model, folder), lambda ids: 1.001 * model(ids)
        )
    loss(*torch.randint(0, SHAPE["vocab"], (2, 2, 128)).unbind(0)).backward()
    untrained = {name for name, x in model.named_parameters() if x.grad is None}
    assert all(".package.memory_model." in name for name in untrained), untrained


@pytest.mark.slow
def test_failed_row_is_reported(tmp_path):
    command = [sys.executable, BENCHMARKS / "train_peer.py", "--ours", "/bin/false", "--config", "a.toml", "--device"]
    shape = "--layers 1 --width 32 --heads 2 --vocab 67 --batch 1 --length 8 --steps 1 --peer decoder --precision fp32"
    done = subprocess.run([*command, "cpu", "--no-compile", *shape.split()], capture_output=True, text=True)
    assert done.returncode == 1
    assert "/bin/false bench train a.toml" in done.stdout
    assert "decoder, fp32 weights" in done.stdout, "the other rows must still be measured"
