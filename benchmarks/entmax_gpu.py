#!/usr/bin/env python3
"""Measures the speed of sparsemax, entmax-1.5 and sigmoid attention on a GPU, forward and backward in bf16.

    python benchmarks/entmax_gpu.py build/liblazy_ops.so [--shape 8x4096x64 ...] [--score-scale 1 4] [--json FILE]
                                                         [--quick-tuning]
    LAZY_KERNEL=plain python benchmarks/entmax_gpu.py ...    # the general kernel instead of tensor cores

The peers are AdaSplash's Triton kernels for entmax-1.5 (pip install adasplash; AdaSplash-1, and AdaSplash-2 since
version 0.2), and softmax attention by FlashAttention-2 and by our kernels. The problems are causal with 16 heads.
Queries are scaled so that the scores have the given standard deviation. With a larger standard deviation, fewer keys
have a nonzero weight.
Outputs are compared with float64 before timing. Every round runs all variants in turn; the script prints medians over
the rounds, measured with CUDA events.
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
    """Returns the attention weights (rows, keys) for float64 scores, which are -inf at hidden keys. The thresholds of
    sparsemax and entmax-1.5 are found by bisection."""
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
    """Returns the masked scores of one head. q and k are (rows, dim)."""
    return (q @ k.T / q.shape[1] ** 0.5).masked_fill(
        ~torch.ones(len(q), len(k), device=q.device, dtype=bool).tril(), -torch.inf
    )


def alive_share(q, k):
    """Returns the fraction of the visible query-key pairs of one head that have a positive entmax-1.5 weight."""
    scores = causal_scores(q, k)
    return ((weights(scores, "entmax15") > 0).sum() / (scores > -torch.inf).sum()).item()


def error(run, q, k, v, normalizer):
    q, k, v = (x[-1, :CHECKED, 3].double() for x in (q, k, v))
    expected = weights(causal_scores(q, k), normalizer) @ v
    with torch.no_grad():
        found = run()[-1, :CHECKED, 3].double()
    return ((found - expected).norm() / expected.norm()).item()


def variants(q, k, v):
    """Returns {name of the implementation: (function that computes attention, normalizer)}."""
    across = lambda x: x.transpose(1, 2)
    contiguous = [across(x).contiguous() for x in (q, k, v)]

    def ours(normalizer):
        return lambda: torch.ops.lazy.attention(q, k, v, normalizer=normalizer)[0]

    def flash():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return across(F.scaled_dot_product_attention(across(q), across(k), across(v), is_causal=True))

    out = {f"ours, {n}": (ours(n), n) for n in ("entmax15", "sparsemax", "sigmoid", "softmax")}
    out["FlashAttention-2, softmax"] = (flash, "softmax")
    # AdaSplash needs contiguous (batch, heads, tokens, dim) inputs. The copies are not timed, because a model could
    # produce this layout directly.
    for name, attention in adasplash_peers().items():
        out[name] = (
            lambda attention=attention: across(attention(*(x.detach().requires_grad_() for x in contiguous))),
            "entmax15",
        )
    return out


def adasplash_peers():
    """Returns {name: function (q, k, v) -> causal entmax-1.5 attention}. The names contain the package's version.
    Prints a message if a version of AdaSplash is not available."""
    try:
        import adasplash
    except ImportError as missing:
        print(f"AdaSplash is not available ({missing})")
        return {}
    version = importlib.metadata.version("adasplash")
    if not hasattr(adasplash, "adasplash_v2"):
        print(f"AdaSplash-2 is not available: adasplash {version} only has AdaSplash-1 (expected 0.2 or later)")
        return {f"AdaSplash-1 ({version})": lambda q, k, v: adasplash.adasplash(q, k, v, is_causal=True)}
    return {
        f"AdaSplash-2 ({version})": adasplash.adasplash_v2,
        f"AdaSplash-1 ({version})": lambda q, k, v: adasplash.adasplash_v1(q, k, v, is_causal=True),
    }


def both(run, inputs, d_out):
    """Returns a function that runs the forward and the backward pass of `run`, and then clears the gradients of
    `inputs`, the leaf tensors that `run` uses."""

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
    p.add_argument("operators", help="path of liblazy_ops.so")
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
                # if a compared implementation does not run on this machine, print the reason
                except Exception as exception:
                    failed[name] = str(exception).split("\n")[0][:160]
            times = medians(works, a.rounds)
            print(
                f"\n{batch} x {length}, head size {dim}, scores with standard deviation {scale:g} "
                f"({100 * share:.0f} % of pairs have nonzero weight in {cut} tokens under entmax-1.5), "
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
