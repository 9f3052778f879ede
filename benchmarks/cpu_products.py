#!/usr/bin/env python3
"""The output projection's product x W^T in fp32 on a CPU by LibTorch's two libraries.

    python benchmarks/cpu_products.py [--threads 2] [--rows 131] [--vocabulary 32000] [--width 128 512 1024]

These are `torch.mm` (the BLAS) and oneDNN, which src/ops/row_products.cc calls. Prints GFLOP/s, medians.
"""

import argparse
import statistics
import time

import torch


def seconds(run, repeats):
    run()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rows", type=int, default=131, help="tokens of 16 MiB of logits")
    p.add_argument("--vocabulary", type=int, default=32000)
    p.add_argument("--width", type=int, nargs="+", default=[128, 512, 1024])
    p.add_argument("--repeats", type=int, default=40)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    print("| rows x width x vocabulary | torch.mm, GFLOP/s | oneDNN |\n|---|---:|---:|")
    for width in a.width:
        x, weight = torch.randn(a.rows, width), torch.randn(a.vocabulary, width)
        ways = [
            lambda: torch.mm(x, weight.t()),
            lambda: torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], ""),
        ]
        torch.testing.assert_close(ways[1](), ways[0](), rtol=1e-4, atol=1e-3)
        speed = [2e-9 * a.rows * width * a.vocabulary / seconds(way, a.repeats) for way in ways]
        print(f"| {a.rows} x {width} x {a.vocabulary} | {speed[0]:.0f} | {speed[1]:.0f} |")


if __name__ == "__main__":
    main()
