#!/usr/bin/env python3
"""Measures time and memory of attention sink statistics that are computed from the T x T attention matrices of
transformers (output_attentions), for comparison with `lazy bench sinks`.

    python benchmarks/sinks_peer.py --layers 24 --width 1024 --heads 16 [--longest 32768] [--json FILE]

A Llama model with random weights processes one sequence with eager attention and returns the attention matrices of
every layer; sink ratio and density are means over these matrices. The length starts at --shortest and is doubled until
memory is exhausted. Then the maximum length is determined by bisection in steps of 1024 (or of --shortest, if that is
less). For comparison, the plain forward pass of the same model with SDPA also runs at each length. Both passes compute
no logits. At the first length, the hidden states of the two passes must agree up to rounding errors.
"""

import argparse
import json
import time

import torch
from llama_shape import add_shape, llama_config
from transformers import LlamaModel

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
add_shape(p)
p.add_argument("--shortest", type=int, default=2048)
p.add_argument("--longest", type=int, default=32768)
p.add_argument("--repeats", type=int, default=3, help="number of runs; the median is reported")
p.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
p.add_argument("--dtype", choices=["fp32", "bf16"], default="bf16")
p.add_argument("--json")
a = p.parse_args()

torch.manual_seed(0)
dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[a.dtype]
model = LlamaModel(llama_config(a, a.longest)).eval().to(a.device, dtype)


def wait():
    if a.device == "cuda":
        torch.cuda.synchronize()


@torch.no_grad()
def by_matrices(ids):
    """Returns the sink ratio and the density, as means over layers, heads and queries."""
    model.set_attn_implementation("eager")
    matrices = model(ids, output_attentions=True).attentions
    first = torch.stack([m[..., 0].float().mean() for m in matrices]).mean()
    kept = torch.stack([m.sum(-1, dtype=torch.float32).mean() for m in matrices]).mean()
    return first.item(), (kept - first).item()


@torch.no_grad()
def forward(ids):
    model.set_attn_implementation("sdpa")
    return model(ids).last_hidden_state


def timed(work, ids):
    """Returns the median milliseconds and the peak bytes of work(ids), or None if memory is exhausted."""
    try:
        work(ids)
        wait()
        if a.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(a.repeats):
            begin = time.perf_counter()
            work(ids)
            wait()
            times.append(1e3 * (time.perf_counter() - begin))
        peak = torch.cuda.max_memory_allocated() if a.device == "cuda" else 0
        return sorted(times)[len(times) // 2], peak
    except RuntimeError as error:  # torch.OutOfMemoryError on CUDA, or an error of the CPU allocator
        if "memory" not in str(error):
            raise
        return None
    finally:
        if a.device == "cuda":
            torch.cuda.empty_cache()


def measure(length):
    ids = torch.randint(0, a.vocab, (1, length), generator=torch.Generator().manual_seed(1)).to(a.device)
    there = timed(by_matrices, ids)
    if there is None:
        print(f"| {length} | out of memory | | |", flush=True)
        return None
    alone = timed(forward, ids)
    row = {
        "length": length,
        "matrices_ms": there[0],
        "plain_ms": alone[0],
        "time_ratio": there[0] / alone[0],
        "matrices_bytes": there[1],
        "plain_bytes": alone[1],
    }
    memory = f"{there[1] / 2**30:.1f} against {alone[1] / 2**30:.1f} GiB" if there[1] else "–"
    print(f"| {length} | {there[0]:.1f} against {alone[0]:.1f} ms | {row['time_ratio']:.2f} | {memory} |", flush=True)
    return row


def check(length):
    ids = torch.randint(0, a.vocab, (1, length), generator=torch.Generator().manual_seed(1)).to(a.device)
    one = forward(ids).float()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        other = model(ids, output_attentions=True).last_hidden_state.float()
    error = ((one - other).norm() / one.norm()).item()
    bound = a.layers * (2**-8 if a.dtype == "bf16" else 2**-20)
    if not error < bound:
        raise SystemExit(
            f"eager and SDPA differ by {error:.1e}, expected below {bound:.1e}; unequal results are not timed"
        )


check(min(a.shortest, 512))
parameters = (
    sum(t.numel() for t in model.parameters()) + a.vocab * a.width
)  # the count includes a language-model head, as in `lazy bench sinks`
machine = torch.cuda.get_device_name() if a.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
print(f"transformers Llama, {parameters / 1e6:.1f}M parameters with its head, {a.dtype} on {machine}\n")
print("| tokens | attention matrices against plain forward | ratio | peak memory |\n|---|---|---|---|")
rows, length = [], a.shortest
while length <= a.longest and (row := measure(length)):
    rows.append(row)
    length *= 2
low, high, step = (rows[-1]["length"] if rows else 0), length, min(1024, a.shortest)
while length <= a.longest and rows and high - low > step:
    middle = (low + high) // 2 // step * step
    row = measure(middle)
    low, high = (middle, high) if row else (low, middle)
    rows += [row] if row else []
survives = max((r["length"] for r in rows), default=0)
print(
    f"\nmaximum length that fits into memory: {survives} tokens"
    + (", the maximum length that was tried" if survives == a.longest else "")
)
if a.json:
    with open(a.json, "w") as file:
        json.dump(
            {
                "peer": "transformers output_attentions",
                "parameters": parameters,
                "device": machine,
                "dtype": a.dtype,
                "torch": torch.__version__,
                "survives": survives,
                "rows": sorted(rows, key=lambda r: r["length"]),
            },
            file,
            indent=2,
        )
