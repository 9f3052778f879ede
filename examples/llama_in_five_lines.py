"""Replaces the attention of a Hugging Face Llama.

Usage, in the source tree after `make python`:
    PYTHONPATH=python .venv/bin/python examples/llama_in_five_lines.py [MODEL FOLDER OR NAME]
Without an argument it builds a small Llama with random weights and downloads nothing.
"""

import sys

import lazy_attention.hf  # line 1: registers attn_implementation="lazy"
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM


def main() -> None:
    torch.manual_seed(0)
    pretrained = len(sys.argv) > 1
    if pretrained:
        model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
    else:
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=256,
                hidden_size=128,
                intermediate_size=256,
                num_hidden_layers=4,
                num_attention_heads=8,
                num_key_value_heads=4,
                initializer_range=0.1,
            )
        )
    model.eval()
    ids = torch.randint(0, model.config.vocab_size, (2, 64))
    with torch.no_grad():
        before = model(ids).logits

        model.set_attn_implementation("lazy")  # line 2: lazy::attention now computes the softmax attention
        print(f"softmax through lazy: logits differ by {(model(ids).logits - before).abs().max():.1e}")

        # Line 3: Elastic-Softmax and a distance bias. With tau = 0 and a bias of zeros, Elastic-Softmax is equal to
        # softmax, so pretrained weights start with these values. docs/guides/python.md shows how to move tau to -1 in
        # small steps during training. Random weights start with tau = -1, as in the paper.
        lazy_attention.hf.make_lazy(model, distance_bias_window=32, tau=0.0 if pretrained else -1.0)
        print(f"Lazy Attention: logits differ by {(model(ids).logits - before).abs().max():.1e}")

    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-3)  # lines 4 and 5: the usual training loop
    for step in range(5):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}  loss {loss.item():.3f}")
    tau = model.model.layers[0].self_attn.lazy_tau
    print("tau of the first layer:", " ".join(f"{value:.3f}" for value in tau.tolist()))


main()
