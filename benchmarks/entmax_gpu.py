#!/usr/bin/env python3
"""Sparsemax, entmax-1.5 and sigmoid attention on a GPU, forward and backward in bf16.

    python benchmarks/entmax_gpu.py build/liblazy_ops.so [--shape 8x4096x64 ...] [--score-scale 1 4] [--json FILE]
                                                         [--quick-tuning]
    LAZY_KERNEL=plain python benchmarks/entmax_gpu.py ...    # the general kernel instead of tensor cores

They are compared with AdaSplash's Triton kernels for entmax-1.5 (pip install adasplash: AdaSplash-2 from version 0.2
on, and AdaSplash-1), and with softmax by FlashAttention-2 and by our kernels. Causal, 16 heads. Queries are drawn such
that scores have the given standard deviation: the larger it is, the fewer keys have weight. Outputs are compared with
float64 before anything is timed. Prints medians over rounds that run every variant in turn, measured with CUDA events.
"""

import argparse
import importlib.metadata
import json

import quick_tuning
import torch
import torch.nn.functional as F
from gpu_medians import medians
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, CHECKED = 16, 1024


def weights(scores, normalizer):
    """float64, (rows, keys), -inf where hidden; thresholds by bisection."""
    if normalizer == "softmax":
        return scores.softmax(-1)
    if normalizer == "sigmoid":
        return (scores - (scores > -torch.inf).sum(-1, keepdim=True).log()).sigmoid()
    x, power = (scores / 2, 2) if normalizer == "entmax15" else (scores, 1)
    high = x.amax(-1, keepdim=True)
    low = high - 1
    for _ in range(60):
        middle = (low + high) / 2
        above = ((x - middle).clamp(min=0) ** power).sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return (x - low).clamp(min=0) ** power


def causal_scores(q, k):
    """Of one head, (rows, dim) each."""
    return (q @ k.T / q.shape[1] ** 0.5).masked_fill(
        ~torch.ones(len(q), len(k), device=q.device, dtype=bool).tril(), -torch.inf
    )


def alive_share(q, k):
    """Of visible pairs of one head, under entmax-1.5."""
    scores = causal_scores(q, k)
    return ((weights(scores, "entmax15") > 0).sum() / (scores > -torch.inf).sum()).item()


def error(run, q, k, v, normalizer):
    q, k, v = (x[-1, :CHECKED, 3].double() for x in (q, k, v))
    expected = weights(causal_scores(q, k), normalizer) @ v
    with torch.no_grad():
        found = run()[-1, :CHECKED, 3].double()
    return ((found - expected).norm() / expected.norm()).item()


def variants(q, k, v):
    """name -> (function, normalizer)"""
    across = lambda x: x.transpose(1, 2)
    contiguous = [across(x).contiguous() for x in (q, k, v)]

    def ours(normalizer):
        return lambda: torch.ops.lazy.attention(q, k, v, normalizer=normalizer)[0]

    def flash():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return across(F.scaled_dot_product_attention(across(q), across(k), across(v), is_causal=True))

    out = {f"ours, {n}": (ours(n), n) for n in ("entmax15", "sparsemax", "sigmoid", "softmax")}
    out["FlashAttention-2, softmax"] = (flash, "softmax")
    # They want (batch, heads, tokens, dim) contiguous, which a model that has it would not pay for.
    for name, attention in adasplash_peers().items():
        out[name] = (
            lambda attention=attention: across(attention(*(x.detach().requires_grad_() for x in contiguous))),
            "entmax15",
        )
    return out


def adasplash_peers():
    """name -> causal entmax-1.5 of (q, k, v); the names tell the package's version, and what it lacks is said."""
    try:
        import adasplash
    except ImportError as missing:
        print(f"without AdaSplash ({missing})")
        return {}
    version = importlib.metadata.version("adasplash")
    if not hasattr(adasplash, "adasplash_v2"):
        print(f"without AdaSplash-2: adasplash {version} has only AdaSplash-1 (expected 0.2 or later)")
        return {f"AdaSplash-1 ({version})": lambda q, k, v: adasplash.adasplash(q, k, v, is_causal=True)}
    return {
        f"AdaSplash-2 ({version})": adasplash.adasplash_v2,
        f"AdaSplash-1 ({version})": lambda q, k, v: adasplash.adasplash_v1(q, k, v, is_causal=True),
    }


def both(run, inputs, d_out):
    """Forward and backward; the inputs of the peers are separate leaf tensors."""

    def work():
        found = run()
        found.backward(d_out)
        for x in inputs:
            x.grad = None

    return work


def forward(run):
    def work():
        with torch.no_grad():
            run()

    return work


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("operators", help="liblazy_ops.so")
    p.add_argument("--shape", nargs="+", default=["128x512x64", "8x4096x64", "8x4096x128"])
    p.add_argument("--score-scale", nargs="+", type=float, default=[1.0, 4.0])
    p.add_argument("--rounds", type=int, default=10)
    p.add_argument("--json")
    quick_tuning.add_argument(p)
    a = p.parse_args()
    if a.quick_tuning:
        quick_tuning.install()
    torch.ops.load_library(a.operators)
    rows = []
    for shape in a.shape:
        batch, length, dim = map(int, shape.split("x"))
        for scale in a.score_scale:
            torch.manual_seed(0)
            q, k, v, d_out = (torch.randn(batch, length, HEADS, dim, device="cuda") for _ in range(4))
            q, k, v, d_out = (q * scale).bfloat16(), k.bfloat16(), v.bfloat16(), d_out.bfloat16()
            cut = min(length, CHECKED)
            share = alive_share(q[0, :cut, 0].double(), k[0, :cut, 0].double())
            for x in (q, k, v):
                x.requires_grad_()
            works, failed, wrong = {}, {}, {}
            for name, (run, normalizer) in variants(q, k, v).items():
                try:
                    wrong[name] = error(run, q, k, v, normalizer)
                    if not wrong[name] < 2e-2:
                        failed[name] = f"wrong: relative error {wrong[name]:.1e}"
                        continue
                    both(run, (q, k, v), d_out)()
                    works[name, "forward"], works[name, "both"] = forward(run), both(run, (q, k, v), d_out)
                except Exception as exception:  # a peer that does not run here is named and left out
                    failed[name] = str(exception).split("\n")[0][:160]
            times = medians(works, a.rounds)
            print(
                f"\n{batch} x {length}, head size {dim}, scores of deviation {scale:g} "
                f"({100 * share:.0f} % of pairs alive in {cut} tokens under entmax-1.5), "
                f"{torch.cuda.get_device_name()}, ms",
                flush=True,
            )
            print(f"{'':28}{'forward':>10}{'with backward':>16}{'relative error':>17}")
            for name in dict.fromkeys(n for n, _ in works):
                print(
                    f"{name:28}{times[name, 'forward']:10.3f}{times[name, 'both']:16.3f}{wrong[name]:17.1e}", flush=True
                )
                rows.append(
                    {
                        "shape": shape,
                        "score_scale": scale,
                        "alive": share,
                        "variant": name,
                        "forward_ms": times[name, "forward"],
                        "both_ms": times[name, "both"],
                        "error": wrong[name],
                    }
                )
            for name, why in failed.items():
                print(f"{name:28}left out: {why}")
                rows.append({"shape": shape, "score_scale": scale, "variant": name, "failed": why})
    if a.json:
        with open(a.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
