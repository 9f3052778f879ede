#!/usr/bin/env python3
"""The peer of `lazy bench train`: a Hugging Face Llama of the same shape under torch.compile, bf16, SDPA, fused AdamW.

    python benchmarks/train_peer.py --layers 24 --width 1024 --batch 8 --length 4096 [--json FILE]

Prints tokens/s, model FLOP/s (6 (N - embedding) + 6 L T d a token) and memory, counted as in `lazy bench train`.
"""

import argparse
import json
import time

import torch
from llama_shape import add_shape, llama_config
from transformers import LlamaForCausalLM

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
add_shape(p)
p.add_argument("--tied", action="store_true")
p.add_argument("--batch", type=int, default=8)
p.add_argument("--length", type=int, default=4096)
p.add_argument("--steps", type=int, default=10)
p.add_argument("--no-compile", action="store_true")
p.add_argument("--json")
a = p.parse_args()

torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
config = llama_config(a, a.length, tie_word_embeddings=a.tied, attn_implementation="sdpa")
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
parameters = sum(t.numel() for t in model.parameters())
multiplied = parameters - (0 if a.tied else a.vocab * a.width)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
run = model if a.no_compile else torch.compile(model)
ids = torch.randint(0, a.vocab, (a.batch, a.length), device="cuda")


def step():
    loss = run(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


begin = time.time()
for _ in range(3):
    step()
torch.cuda.synchronize()
warm = time.time() - begin
begin = time.time()
for _ in range(a.steps):
    loss = step()
torch.cuda.synchronize()
seconds = (time.time() - begin) / a.steps
tokens = a.batch * a.length
flops = 6 * multiplied + 6 * a.layers * a.length * a.width
result = {
    "peer": "transformers Llama, " + ("eager" if a.no_compile else "torch.compile"),
    "parameters": parameters,
    "batch": a.batch,
    "seq_len": a.length,
    "tokens_per_second": tokens / seconds,
    "tflops": tokens / seconds * flops / 1e12,
    "peak_memory_bytes": torch.cuda.max_memory_reserved(),
    "step_ms": 1e3 * seconds,
    "first_steps_seconds": warm,
    "loss": loss.item(),
}
print(
    f"{result['peer']}, {parameters / 1e6:.1f}M parameters, {a.batch} x {a.length}: "
    f"{result['tokens_per_second']:.0f} tokens/s "
    f"{result['tflops']:.1f} TFLOP/s {result['peak_memory_bytes'] / 2**30:.2f} GiB, first steps after {warm:.0f} s"
)
if a.json:
    with open(a.json, "w") as file:
        json.dump(result, file, indent=2)
