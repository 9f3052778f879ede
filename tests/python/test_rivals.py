"""Compares gated attention, off-by-one softmax and Softpick with their definitions and with the authors' code.

The authors' code is optional. LAZY_GATED_ATTENTION is the path of a folder with modeling_qwen3.py and
configuration_qwen3.py of github.com/qiuzh20/gated_attention. LAZY_SOFTPICK is the path of a folder with
naive_softpick_attn.py of github.com/zaydzuhri/softpick-attention."""

import importlib
import os
import sys
import types

import lazy_attention
import pytest
import torch
from lazy_attention import LazyAttention
from naming import naming


def module_of(variable, name, monkeypatch):
    """Imports the module `name` from the folder that the environment variable names. The module is part of a temporary
    package until the test ends."""
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"{variable} is not set")
    package = types.ModuleType(variable.lower())
    package.__path__ = [folder]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.delitem(sys.modules, f"{package.__name__}.{name}", raising=False)
    return importlib.import_module(f"{package.__name__}.{name}")


def layer(**settings):
    torch.manual_seed(3)
    arguments = dict(normalizer="softmax", distance_bias_window=0, rope_base=1e4) | settings
    return LazyAttention(48, 6, 2, 8, **arguments)


def close(ours, theirs, tolerance=1e-5):
    assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()


@pytest.mark.parametrize("gate, rows", [("head", 6), ("element", 48)])
def test_gate_multiplies_the_output_of_every_head(gate, rows):
    gated, x = layer(gate=gate), torch.randn(2, 13, 48)
    assert gated.gate_proj.weight.shape == (rows, 48)
    plain = layer()
    plain.load_state_dict(gated.state_dict(), strict=False)
    plain.o_proj = torch.nn.Identity()
    heads = plain(x).unflatten(-1, (6, 8))
    gates = 1 / (1 + torch.exp(-(x @ gated.gate_proj.weight.T)))
    out = (heads * gates.unflatten(-1, (6, -1))).flatten(-2) @ gated.o_proj.weight.T
    close(gated(x), out)
    out.square().sum().backward()
    theirs = {"gate_proj": gated.gate_proj.weight.grad.clone(), "o_proj": gated.o_proj.weight.grad.clone()}
    gated.zero_grad()
    gated(x).square().sum().backward()
    for name, gradient in theirs.items():
        close(getattr(gated, name).weight.grad, gradient)


def test_fixed_sinks_match_off_by_one_softmax():
    fixed = layer(normalizer="softmax_sink", sink_trainable=False)
    assert "sinks" in dict(fixed.named_buffers())
    q, k, v = (torch.randn(1, 9, 2, 8) for _ in range(3))
    out = lazy_attention.attention(q, k, v, sink=torch.zeros(2), normalizer="softmax_sink")
    e = torch.exp(torch.einsum("bihd,bjhd->bhij", q, k) / 8**0.5).tril()
    close(out, torch.einsum("bhij,bjhd->bihd", e / (1 + e.sum(-1, keepdim=True)), v))


def test_unknown_gate_is_rejected():
    with pytest.raises(ValueError, match=naming("gate", "none", "head", "element", "both")):
        layer(gate="both")


@pytest.mark.data
@pytest.mark.parametrize("gate", ["head", "element"])
def test_gated_attention_matches_the_authors_code(gate, monkeypatch):
    theirs = module_of("LAZY_GATED_ATTENTION", "modeling_qwen3", monkeypatch)
    config = types.SimpleNamespace(
        hidden_size=48,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        rope_theta=1e4,
        rope_scaling=None,
        attention_dropout=0.0,
        use_qk_norm=False,
        qkv_bias=False,
        rms_norm_eps=1e-6,
        headwise_attn_output_gate=gate == "head",
        elementwise_attn_output_gate=gate == "element",
    )

    class Rotary(torch.nn.Module):  # replaces the authors' class, which needs transformers 4
        def __init__(self, config):
            super().__init__()

    theirs.Qwen3RotaryEmbedding = Rotary
    ours, x = layer(gate=gate), torch.randn(2, 17, 48)
    attention = theirs.Qwen3Attention(config, 0)
    groups = [p.unflatten(0, (2, -1)) for p in (ours.q_proj.weight, ours.gate_proj.weight)]
    with torch.no_grad():
        # the authors store, for each kv head, the rows of its queries and then the rows of its gates
        attention.q_proj.weight.copy_(torch.cat(groups, 1).flatten(0, 1))
        for name in ("k_proj", "v_proj", "o_proj"):
            getattr(attention, name).weight.copy_(getattr(ours, name).weight)
    angles = torch.arange(17)[:, None] * 1e4 ** (-torch.arange(4) / 4)
    angles = torch.cat((angles, angles), -1)[None]
    mask = torch.full((17, 17), float("-inf")).triu(1)[None, None]
    expected = attention(x, attention_mask=mask, position_embeddings=(angles.cos(), angles.sin()))[0]
    close(ours(x), expected)


@pytest.mark.data
def test_softpick_matches_the_authors_code(monkeypatch):
    if os.environ.get("LAZY_SOFTPICK") and importlib.util.find_spec("einops") is None:
        # The authors' code imports einops for a layout that this test does not use, so a mock module is sufficient.
        monkeypatch.setitem(sys.modules, "einops", types.SimpleNamespace(rearrange=None))
    theirs = module_of("LAZY_SOFTPICK", "naive_softpick_attn", monkeypatch)
    q, k, v = (torch.randn(2, 4, 19, 16, requires_grad=True) for _ in range(3))
    expected, _ = theirs.naive_softpick_attn(q, k, v, head_first=True)
    cotangent = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, (q, k, v), cotangent)
    ours = lazy_attention.attention(*(t.transpose(1, 2) for t in (q, k, v)), normalizer="softpick").transpose(1, 2)
    close(ours, expected)
    for gradient, own in zip(gradients, torch.autograd.grad(ours, (q, k, v), cotangent)):
        close(own, gradient, 1e-4)
