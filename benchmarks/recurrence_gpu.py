#!/usr/bin/env python3
"""Compares the speed of our tensor-core kernels for linear recurrences with the Triton kernels of
flash-linear-attention (FLA), in bf16.

    python benchmarks/recurrence_gpu.py build/liblazy_ops.so [--shape 8x4096 ...] [--kernels] [--json FILE]
                                                             [--quick-tuning]

The script times the forward pass alone, and the forward and backward pass together. Numbers of heads and widths are
taken from the 340M models. If FLA is installed, results and gradients are compared before they are timed. --kernels
lists the time of each of our kernels. Every round runs all variants in turn; the script prints medians over the rounds,
measured with CUDA events.
"""

import argparse
import json

import fla_guard
import quick_tuning
import torch
import torch.nn.functional as F
from gpu_medians import medians

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("operators", help="path of liblazy_ops.so")
p.add_argument("--shape", nargs="*", default=["16x2048", "8x4096", "4x8192"])
p.add_argument("--rounds", type=int, default=10)
p.add_argument("--kernels", action="store_true")
p.add_argument("--json")
quick_tuning.add_argument(p)
a = p.parse_args()
if a.quick_tuning:
    quick_tuning.install()
torch.ops.load_library(a.operators)
lazy = torch.ops.lazy
try:
    from fla.modules.causal_conv1d import causal_conv1d
    from fla.ops.delta_rule import chunk_delta_rule
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.retention import chunk_retention
    from fla.ops.simple_gla import chunk_simple_gla

    print(fla_guard.lift())
except ImportError as error:
    print(f"flash-linear-attention is not available ({error})")
    chunk_delta_rule = None
DEVICE = "cuda"


def bf16(*sizes):
    return torch.randn(*sizes, device=DEVICE).bfloat16()


def ours(q, k, v, log_decay=None, beta=None, skip=None, scale=1.0, delta=False):
    return lazy.linear_recurrence(q, k, v, log_decay, beta, skip, None, None, scale, delta)[0]


def variants(B, L):
    """Returns {name: (inputs, our function, FLA's function or None)}."""
    rates = lambda H: torch.rand(B, L, H, device=DEVICE)
    decays = lambda H: -torch.rand(B, L, H, device=DEVICE) / 4
    keys = lambda G, K: F.normalize(torch.randn(B, L, G, K, device=DEVICE), dim=-1).bfloat16()
    retention = torch.log1p(-torch.exp2(-5 - torch.arange(4, device=DEVICE, dtype=torch.float64))).float()
    peers = chunk_delta_rule is not None
    first = lambda y: y[0] if isinstance(y, tuple) else y
    all_of = {
        "gated delta rule, 6 x 256 / 512": (
            [keys(6, 256), keys(6, 256), bf16(B, L, 6, 512), decays(6), rates(6)],
            lambda q, k, v, g, b: ours(q, k, v, g, b, scale=1 / 16, delta=True),
            lambda q, k, v, g, b: first(chunk_gated_delta_rule(q, k, v, g, b)),
        ),
        "delta rule, 8 x 128 / 128": (
            [keys(8, 128), keys(8, 128), bf16(B, L, 8, 128), rates(8)],
            lambda q, k, v, b: ours(q, k, v, None, b, scale=128**-0.5, delta=True),
            lambda q, k, v, b: first(chunk_delta_rule(q, k, v, b.bfloat16())),
        ),
        "retention, 4 x 256 / 512": (
            [keys(4, 256), keys(4, 256), bf16(B, L, 4, 512)],
            lambda q, k, v: ours(q, k, v, retention, scale=1 / 16),
            lambda q, k, v: first(chunk_retention(q, k, v)),
        ),
        "SSD, 32 x 128 / 64, one group": (  # FLA needs separate keys and values per head
            [keys(1, 128), keys(1, 128), bf16(B, L, 32, 64), decays(32), rates(32)],
            lambda q, k, v, g, b: ours(q, k, v, g, b),
            lambda q, k, v, g, b: first(
                chunk_simple_gla(
                    q.expand(-1, -1, 32, -1).contiguous(),
                    k.expand(-1, -1, 32, -1).contiguous(),
                    (v * b.unsqueeze(-1)).bfloat16(),
                    g,
                    scale=1.0,
                )
            ),
        ),
    }
    for D in (1024, 3072):
        all_of[f"convolution of {D}"] = (
            [bf16(B, L, D), torch.randn(D, 1, 4, device=DEVICE)],
            lambda x, w: lazy.short_convolution(x, w),
            lambda x, w: first(causal_conv1d(x, w.squeeze(1).to(x.dtype), activation="silu")),
        )
    return {name: (inputs, mine, theirs if peers else None) for name, (inputs, mine, theirs) in all_of.items()}


def gradients(function, inputs, weights):
    return torch.autograd.grad(function(*inputs), inputs, weights)


def profile(work):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        for _ in range(5):
            work()
        torch.cuda.synchronize()
    for event in sorted(trace.key_averages(), key=lambda e: -e.device_time_total)[:12]:
        print(f"    {event.device_time_total / 5000:8.3f} ms {event.count / 5:4.0f} x  {event.key[:110]}", flush=True)


rows = []
for shape in a.shape:
    B, L = map(int, shape.split("x"))
    torch.manual_seed(0)
    for name, (inputs, mine, theirs) in variants(B, L).items():
        inputs = [t.requires_grad_() for t in inputs]
        weights = torch.randn_like(mine(*inputs))
        row = {"what": name, "shape": shape}
        works = {"ours": lambda: gradients(mine, inputs, weights)}
        forwards = {"ours": lambda: mine(*inputs)}
        try:
            expected = [theirs(*inputs), *gradients(theirs, inputs, weights)] if theirs is not None else None
        except Exception as error:  # Triton's errors have no common base class
            print(f"{name}, {shape}: FLA: {str(error).splitlines()[0]}")
            expected = None
        if expected is not None:
            found = [mine(*inputs), *works["ours"]()]
            far = [((x.float() - y.float()).norm() / y.float().norm()).item() for x, y in zip(found, expected)]
            row["difference"] = max(far)
            works["fla"] = lambda: gradients(theirs, inputs, weights)
            forwards["fla"] = lambda: theirs(*inputs)
            if not max(far) < 0.03:
                print(f"{name}, {shape}: results and gradients differ from FLA's by {[f'{x:.4f}' for x in far]}")
        with torch.no_grad():
            row["forward_ms"] = medians(forwards, a.rounds)
        row["both_ms"] = medians(works, a.rounds)
        ratio = lambda t: f"{t['fla'] / t['ours']:.2f}" if "fla" in t else "-"
        show = lambda t: " / ".join(f"{x:.3f}" for x in t.values())
        print(
            f"{name:34} {shape:8} forward {show(row['forward_ms'])} ms, FLA / ours {ratio(row['forward_ms'])}; "
            f"with backward {show(row['both_ms'])}, {ratio(row['both_ms'])}",
            flush=True,
        )
        if a.kernels and shape == a.shape[0]:
            profile(works["ours"])
        rows.append(row)
if a.json:
    with open(a.json, "w") as file:
        json.dump(rows, file, indent=2)
