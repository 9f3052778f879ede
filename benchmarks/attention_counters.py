#!/usr/bin/env python3
"""Measures hardware counters of the attention kernels with NVIDIA Nsight Compute (ncu), to find what bounds each
kernel.

    python benchmarks/attention_counters.py build/liblazy_ops.so [--shape 8x4096x64 ...] [--case CASE ...] [--json FILE]

Prints one line per kernel: the time in microseconds (the kernel runs alone, with unlocked clocks); the utilization in
percent of the peak of tensor cores, special-function unit, FMA, ALU, issue slots, shared-memory wavefronts, L2 and
DRAM; and the three largest stall reasons, in warps per issued instruction. The problems are causal, with random inputs,
bf16, 16 heads, and a bias of 512 distances. The scores of entmax15 have a standard deviation of 3. Each case runs
twice; ncu profiles the second run.
"""

import argparse
import csv
import json
import subprocess
import sys

HEADS, WINDOW = 16, 512
CASES = {
    "softmax": {"normalizer": "softmax"},
    "elastic": {"normalizer": "elastic"},
    "elastic+bias": {"normalizer": "elastic", "bias": True},
    "elastic+bias+stats": {"normalizer": "elastic", "bias": True, "return_stats": 1},
    "softmax+score-stats": {"normalizer": "softmax", "return_stats": 2},
    "entmax15": {"normalizer": "entmax15", "score_scale": 3},
}
PEAKS = {
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "SFU": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "FMA": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "ALU": "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
    "issue": "sm__inst_issued.avg.pct_of_peak_sustained_active",
    "shared": "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_active",
    "L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}
TIME = "gpu__time_duration.sum"
REASONS = (
    "barrier long_scoreboard short_scoreboard wait gmma math_pipe_throttle mio_throttle lg_throttle not_selected "
    "membar sleeping no_instruction branch_resolving dispatch_stall drain imc_miss"
).split()
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


def run(operators, shape, case):
    """Runs one case twice. Only the second run is profiled by ncu."""
    import torch

    torch.ops.load_library(operators)
    batch, length, dim = (int(x) for x in shape.split("x"))
    options = dict(CASES[case])
    torch.manual_seed(1)
    q, k, v, d_out = (torch.randn(batch, length, HEADS, dim, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    inputs = [x.requires_grad_() for x in (q * options.pop("score_scale", 1), k, v)]
    if options.pop("bias", False):
        options["distance_bias"] = (torch.randn(HEADS, WINDOW, device="cuda") / 10).requires_grad_()
    if options["normalizer"] == "elastic":
        options["tau"] = torch.full((HEADS,), -1.0, device="cuda").requires_grad_()
    for watched in (False, True):
        torch.cuda.synchronize()
        if watched:
            torch.cuda.profiler.start()
        with torch.no_grad():
            torch.ops.lazy.attention(*inputs, **options)
        torch.ops.lazy.attention(*inputs, **options)[0].backward(d_out)
        torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def counters(a, shape, case):
    """Profiles one case. Returns one dictionary per kernel, in launch order, with its name and the measured values."""
    metrics = [TIME, *PEAKS.values(), *(STALL.format(x) for x in REASONS)]
    command = [a.ncu, "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw"]
    command += ["--kernel-name-base", "demangled", "-k", "regex:lazy::", "--metrics", ",".join(metrics)]
    command += [sys.executable, __file__, a.operators, "--run", "--shape", shape, "--case", case]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    rows = list(csv.reader(line for line in found.stdout.splitlines() if line.startswith('"')))
    if found.returncode != 0 or len(rows) < 3:
        raise SystemExit(f"{a.ncu}: no kernel was measured:\n{found.stdout[-2000:]}")
    head = rows[0]
    number = lambda row, metric: float(row[head.index(metric)].replace(",", ""))
    units = rows[1]
    factor = {"ns": 1e-3, "us": 1, "ms": 1e3, "nsecond": 1e-3, "usecond": 1, "msecond": 1e3}[units[head.index(TIME)]]
    kernels = []
    for row in rows[2:]:
        name = row[head.index("Kernel Name")].split("(")[0].removeprefix("void ")
        stalls = {x: number(row, STALL.format(x)) for x in REASONS}
        kernels.append(
            {"kernel": name.replace("lazy::kernels::cuda::", ""), "us": number(row, TIME) * factor}
            | {key: number(row, metric) for key, metric in PEAKS.items()}
            | {"stalls": dict(sorted(stalls.items(), key=lambda x: -x[1])[:3])}
        )
    return kernels


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", help="path of liblazy_ops.so")
    parser.add_argument("--shape", nargs="+", default=["8x4096x64", "8x4096x128"], help="batch x length x head size")
    parser.add_argument("--case", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--json")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.run:
        return run(a.operators, *a.shape, *a.case)
    results = {}
    for shape in a.shape:
        for case in a.case:
            print(f"\n{case}, {shape}\n{'us':>9}" + "".join(f"{key:>8}" for key in PEAKS) + "  kernel: stalls")
            for k in results.setdefault(f"{case} {shape}", counters(a, shape, case)):
                stalls = ", ".join(f"{key} {x:.2f}" for key, x in k["stalls"].items())
                print(f"{k['us']:9.1f}" + "".join(f"{k[key]:8.1f}" for key in PEAKS) + f"  {k['kernel']}: {stalls}")
    if a.json:
        with open(a.json, "w") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    sys.exit(main())
