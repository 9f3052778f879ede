"""Elastic-Softmax forward with probabilities kept on chip (cluster_forward.cu), compared with the library's kernels.

    python benchmarks/on_chip/run.py build/liblazy_ops.so [--json FILE] [--built FILE.so]

The experiment is compared with the Hopper kernels and the portable kernels of the library. The script builds it with
nvcc, checks it against float64 (random inputs, large scores, scores that grow along the row) and times it. The problems
are causal, bf16, head size 64, 32768 tokens, 16 heads, without distance bias. Every round runs all variants in turn;
the script prints medians over the rounds.
"""

import argparse
import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from gpu_medians import medians  # noqa: E402

HEADS, TOKENS, LENGTHS, CLUSTERS = 16, 32768, (512, 1024, 2048, 4096), (1, 2, 4, 8)
ROWS = 512  # keys that a block keeps on chip
LEFT_OUT = {1: "exchange", 2: "exponentials", 4: "sum over V", 7: "any of these"}  # variants for timing only


def build(folder):
    root, to = HERE.parent.parent, pathlib.Path(folder) / "liblazy_on_chip.so"
    nvcc = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")
    sources = [HERE / "cluster_forward.cu", root / "src/attention/cuda/hopper_tensor_map.cu"]
    done = subprocess.run(
        [
            nvcc,
            "-std=c++20",
            "-O3",
            "-gencode",
            "arch=compute_90a,code=sm_90a",
            "--expt-relaxed-constexpr",
            "-Xptxas",
            "-v",
            "-Xcompiler",
            "-fPIC",
            "-shared",
            f"-I{root / 'src'}",
            f"-I{root / 'include'}",
            *map(str, sources),
            "-o",
            str(to),
        ],
        capture_output=True,
        text=True,
    )
    report = [
        line
        for line in done.stderr.splitlines()
        if "spill" in line or "Used" in line or "error" in line or "C75" in line
    ]
    print("\n".join(report))
    if done.returncode:
        sys.exit(done.stderr)
    return to


def inputs(length, kind):
    torch.manual_seed(length)
    q, k, v = (torch.randn(TOKENS // length, length, HEADS, 64, device="cuda") for _ in range(3))
    if kind == "large":
        q *= 8
    if kind == "growing":  # scores grow by hundreds: stored values are rescaled
        k = 0.1 * k + torch.linspace(0, 8, length, device="cuda")[:, None, None]
        q = q.abs()
    return *(x.to(torch.bfloat16) for x in (q, k, v)), torch.full((HEADS,), -1.0, device="cuda")


def float64(q, k, v, tau, batch, head):
    q, k, v = (x[batch, :, head].double() for x in (q, k, v))
    n = q.shape[0]
    hidden = torch.ones(n, n, dtype=torch.bool, device="cuda").triu(1)
    p = torch.softmax((q @ k.T / 8).masked_fill(hidden, -torch.inf), -1)
    offset = tau[head].double() / torch.arange(1, n + 1, device="cuda")
    return torch.relu(p + offset[:, None]).masked_fill(hidden, 0) @ v


def error(found, case):
    worst = 0.0
    for batch, head in ((0, 0), (case[0].shape[0] - 1, HEADS - 1), (case[0].shape[0] // 2, 5)):
        expected = float64(*case, batch, head)
        apart = ((found[batch, :, head].double() - expected).norm() / expected.norm()).item()
        worst = max(worst, apart if apart == apart else float("inf"))
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators")
    parser.add_argument("--json")
    parser.add_argument("--built", help="shared library of the experiment that was built before")
    parser.add_argument(
        "--portable", action="store_true", help="only time the kernel that LAZY_KERNEL names (internal option)"
    )
    parser.add_argument("--rounds", type=int, default=15)
    a = parser.parse_args()
    torch.ops.load_library(os.path.abspath(a.operators))

    def ours(case):
        q, k, v, tau = case
        return lambda: torch.ops.lazy.attention(q, k, v, None, tau)[0]

    if a.portable:
        print(
            json.dumps(
                {
                    length: medians({"portable": ours(inputs(length, "random"))}, a.rounds)["portable"]
                    for length in LENGTHS
                }
            )
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        library = ctypes.CDLL(a.built or str(build(folder)))

    def kept(case, cluster, variant=0):
        q, k, v, tau = case
        out, lse = torch.full_like(q, float("nan")), torch.empty(q.shape[0], HEADS, q.shape[1], device="cuda")

        def run():
            failed = library.on_chip_forward(
                cluster,
                variant,
                q.shape[0],
                q.shape[1],
                HEADS,
                *(ctypes.c_void_p(x.data_ptr()) for x in (q, k, v, tau, out, lse)),
                ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
            )
            if failed:
                raise RuntimeError(f"cluster of {cluster}: the kernel could not be launched")
            return out

        run.lse = lse
        return run

    rows, portable = [], {}
    done = subprocess.run(
        [sys.executable, __file__, a.operators, "--portable"],
        capture_output=True,
        text=True,
        env={**os.environ, "LAZY_KERNEL": "portable"},
    )
    try:
        portable = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        print("portable: not measured\n" + done.stderr[-400:])
    print(
        f"{torch.cuda.get_device_name()}, elastic forward, bf16, causal, head size 64, "
        f"{TOKENS} tokens of {HEADS} heads, ms"
    )
    for length in LENGTHS:
        works, wrong, errors = {}, {}, {}
        for kind in ("random", "large", "growing"):
            case = inputs(length, kind)
            with torch.no_grad():
                errors["hopper", kind] = error(ours(case)(), case)
                lse = torch.ops.lazy.attention(*case[:3], None, case[3])[1]
            for cluster, variant in [(c, v) for c in CLUSTERS if length <= c * ROWS <= 4 * length for v in (0, 10, 20)]:
                name = f"cluster of {cluster}" + (f", {variant // 10}/8 polynomials" if variant else "")
                if name in wrong:
                    continue
                run = kept(case, cluster, variant)
                found = run()
                torch.cuda.synchronize()
                errors[name, kind] = e = error(found, case)
                off = (run.lse - lse).abs().max().item()
                if not e < 2 * errors["hopper", kind] + 2**-9 or not off < 1e-2 * (1 + lse.abs().max().item()):
                    wrong[name] = f"{kind}: error {e:.1e} (Hopper {errors['hopper', kind]:.1e}), lse off by {off:.1e}"
                elif kind == "random":
                    works[name] = run
                    again = kept(case, cluster, variant)()
                    torch.cuda.synchronize()
                    if not torch.equal(found, again):
                        wrong[name] = "differs from run to run"
        case = inputs(length, "random")
        works["hopper"] = ours(case)
        q, k, v, _ = (x.transpose(1, 2) if x.dim() == 4 else x for x in case)

        def cudnn():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        works["cuDNN softmax"] = cudnn
        for name, why in wrong.items():
            works.pop(name, None)
            print(f"{length:6} {name}: WRONG, {why}")
        cluster = max(1, length // ROWS)
        for variant, what in LEFT_OUT.items():
            if cluster == 8 or cluster == 1 and variant in (2, 4):
                works[f"without {what}"] = kept(case, cluster, variant)
        with torch.no_grad():
            times = medians(works, a.rounds)
        if str(length) in portable:
            times["portable"] = portable[str(length)]
        for name, ms in times.items():
            print(
                f"{length:6} {name:32} {ms:8.4f} ms   hopper / this {times['hopper'] / ms:5.2f}   cuDNN / this "
                f"{times['cuDNN softmax'] / ms:5.2f}",
                flush=True,
            )
        rows.append(
            {
                "length": length,
                "ms": times,
                "wrong": wrong,
                "errors": {f"{name} {kind}": e for (name, kind), e in errors.items()},
            }
        )
    print(json.dumps(rows))
    if a.json:
        with open(a.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
