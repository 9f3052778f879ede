#!/usr/bin/env python3
"""Measures the speed of the fp32 matrix products of linear layers on a CPU with the two libraries that LibTorch uses, a
BLAS and oneDNN.

    python benchmarks/cpu_products.py [--threads 2] [--shape 131x512x32000 4096x512x1408 ...]

A shape is rows x inputs x outputs. The default shapes are a language-model head with 16 MiB of logits, and the
projections of a layer. `mm` is
torch.mm (the BLAS); the oneDNN product is the function that src/ops/dense_product.cc calls. Prints median GFLOP/s of
the forward product x W^T and of the gradients of x and of W. The two libraries run alternately. Results are compared
before timing.
"""

import argparse
import statistics
import time

import torch


def products(x, weight, d_out):
    """Returns {kind of product: (a, b)}, where the product is a b^T."""
    return {"forward": (x, weight), "gradient of x": (d_out, weight.t()), "gradient of W": (d_out.t(), x.t())}


def by_blas(a, b):
    return torch.mm(a, b.t())


def by_onednn(a, b):
    return torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")


def seconds(ways, repeats):
    """Returns the median time of each function in `ways`, in seconds."""
    times = {way: [] for way in ways}
    for _ in range(repeats):
        for way in ways:
            begin = time.perf_counter()
            way()
            times[way].append(time.perf_counter() - begin)
    return [statistics.median(times[way]) for way in ways]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--shape", nargs="+", default=["131x512x32000", "131x1024x32000", "4096x512x512", "4096x512x1408"])
    p.add_argument("--repeats", type=int, default=15)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    names = list(products(*[torch.empty(1, 1)] * 3))
    print("| rows x inputs x outputs | " + " | ".join(f"{name}: mm, oneDNN" for name in names) + " |")
    print("|---|" + "---|" * len(names))
    for shape in a.shape:
        rows, inputs, outputs = map(int, shape.split("x"))
        x, weight, d_out = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(rows, outputs)
        cells = []
        for left, right in products(x, weight, d_out).values():
            expected = by_blas(left, right)
            torch.testing.assert_close(by_onednn(left, right), expected, rtol=1e-3, atol=1e-3 * expected.std().item())
            times = seconds([lambda: by_blas(left, right), lambda: by_onednn(left, right)], a.repeats)
            cells.append(", ".join(f"{2e-9 * rows * inputs * outputs / t:.0f}" for t in times))
        print(f"| {shape} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
