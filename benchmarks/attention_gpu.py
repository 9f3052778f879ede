"""Compares the speed of lazy_attention on a GPU with the speed of alternatives in PyTorch.

The alternatives are SDPA with cuDNN and with FlashAttention-2 (softmax, no bias), FlexAttention with the distance bias
(softmax), and a straightforward Triton kernel of Elastic-Softmax (forward).

    PYTHONPATH=python python benchmarks/attention_gpu.py [--json FILE] [--shape 8x4096x64 ...]

Results are checked against a computation in fp32 before they are timed. The problems are causal, with random inputs in
bf16 and 16 heads. Every round runs all variants in turn; the script prints medians over the rounds, measured with CUDA
events.
"""

import argparse
import json

import lazy_attention
import torch
import triton_two_pass
from gpu_medians import medians
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

HEADS, WINDOW = 16, 512
# The default tile sizes of PyTorch 2.11 for a captured bias need more shared memory than the GPU has.
FLEX_OPTIONS = {
    "BLOCK_M": 128,
    "BLOCK_N": 64,
    "BLOCK_M1": 32,
    "BLOCK_N1": 64,
    "BLOCK_M2": 64,
    "BLOCK_N2": 32,
    "num_stages": 2,
}
compiled_flex = torch.compile(flex_attention, dynamic=False)


def plain(q, k, v, bias, tau):
    """Computes Elastic-Softmax attention of one head in fp32 as a reference. q, k and v are (length, dim)."""
    length = q.shape[0]
    row = torch.arange(length, device="cuda")
    distance = row[:, None] - row
    s = q @ k.T * q.shape[1] ** -0.5
    if bias is not None:
        s = s + torch.where(
            (distance >= 0) & (distance < bias.shape[0]), bias[distance.clamp(0, bias.shape[0] - 1)], 0.0
        )
    p = torch.softmax(s.masked_fill(distance < 0, -torch.inf), -1)
    return (p if tau is None else torch.relu(p + tau / (row[:, None] + 1)) * (distance >= 0)) @ v


def variants(q, k, v, bias, tau):
    """Returns {name: (function, tensors that require gradients, whether it uses the distance bias, whether it computes
    Elastic-Softmax)}."""

    def sdpa(backend):
        def run():
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
                ).transpose(1, 2)

        return run

    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, q.shape[1], q.shape[1], device="cuda")

    def score_mod(score, b, h, i, j):
        return score + torch.where(i - j < WINDOW, bias[h, (i - j).clamp(0, WINDOW - 1)], 0.0)

    def flex():
        return compiled_flex(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            score_mod=score_mod,
            block_mask=mask,
            kernel_options=FLEX_OPTIONS,
        ).transpose(1, 2)

    def ours(**arguments):
        return lambda: lazy_attention.attention(q, k, v, **arguments)

    return {
        "cuDNN softmax": (sdpa(SDPBackend.CUDNN_ATTENTION), (q, k, v), False, False),
        "FlashAttention-2 softmax": (sdpa(SDPBackend.FLASH_ATTENTION), (q, k, v), False, False),
        "FlexAttention softmax + bias": (flex, (q, k, v, bias), True, False),
        "Triton two-pass elastic + bias": (lambda: triton_two_pass.attention(q, k, v, bias, tau), None, True, True),
        "ours softmax": (ours(normalizer="softmax"), (q, k, v), False, False),
        "ours elastic": (ours(tau=tau), (q, k, v, tau), False, True),
        "ours elastic + bias": (ours(distance_bias=bias, tau=tau), (q, k, v, bias, tau), True, True),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--shape", nargs="+", default=["8x4096x64", "8x4096x128", "2x16384x64", "2x16384x128"])
    arguments = parser.parse_args()
    rows = []
    for shape in arguments.shape:
        batch, length, dim = map(int, shape.split("x"))
        torch.manual_seed(0)
        q, k, v, d_out = (torch.randn(batch, length, HEADS, dim, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        bias = torch.randn(HEADS, WINDOW, device="cuda") * 0.1
        tau = torch.full((HEADS,), -1.0, device="cuda")
        for x in (q, k, v, bias, tau):
            x.requires_grad_()
        works, failed = {}, {}
        for name, (run, inputs, has_bias, elastic) in variants(q, k, v, bias, tau).items():
            try:
                with torch.no_grad():
                    found = run()[-1, :, 3].float()
                    cut = slice(0, min(length, 8192))
                    expected = plain(
                        q[-1, cut, 3].float(),
                        k[-1, cut, 3].float(),
                        v[-1, cut, 3].float(),
                        bias[3] if has_bias else None,
                        tau[3] if elastic else None,
                    )
                    error = ((found[cut] - expected).norm() / expected.norm()).item()
                if not error < 1e-2:
                    failed[name] = f"wrong: relative error {error:.1e}"
                    continue

                def forward(run=run):
                    with torch.no_grad():
                        run()

                works[name, "forward"] = forward
                if inputs:

                    def both(run=run, inputs=inputs):
                        torch.autograd.grad(run(), inputs, d_out)

                    both()
                    works[name, "both"] = both
            # if a compared implementation does not run on this machine, print the reason
            except Exception as exception:
                failed[name] = str(exception).split("\n")[0][:160]
                works.pop((name, "forward"), None)
        times = medians(works, arguments.rounds)
        flops = 2 * batch * HEADS * length * length * dim
        print(
            f"\n{batch} x {length}, head size {dim}, {torch.cuda.get_device_name()}; "
            "cuDNN/it and FA2/it: time of the peer divided by the time of the row\n"
            f"{'':32}{'forward':>10}{'TFLOP/s':>9}{'cuDNN/it':>10}{'FA2/it':>8}"
            f"{'+backward':>13}{'TFLOP/s':>9}{'cuDNN/it':>10}{'FA2/it':>8}"
        )
        for name in dict.fromkeys(name for name, _ in works):
            line, row = f"{name:32}", {"shape": shape, "variant": name}
            for what, factor in (("forward", 1), ("both", 3.5)):
                if (name, what) not in times:
                    continue
                ms = times[name, what]
                ratios = [
                    times.get((peer, what), float("nan")) / ms for peer in ("cuDNN softmax", "FlashAttention-2 softmax")
                ]
                row[what] = {"ms": ms, "cudnn_ratio": ratios[0], "flash2_ratio": ratios[1]}
                line += (
                    f"{ms:{7 if factor == 1 else 10}.3f} ms{factor * flops / ms / 1e9:9.0f}"
                    f"{ratios[0]:10.2f}{ratios[1]:8.2f}"
                )
            print(line, flush=True)
            rows.append(row)
        once, again = (
            torch.autograd.grad(lazy_attention.attention(q, k, v, bias, tau), (q, k, v, bias, tau), d_out)
            for _ in range(2)
        )
        apart = ((once[0] - again[0]).abs().max() / once[0].abs().max()).item()
        same = all(torch.equal(a, b) for a, b in zip(once[1:], again[1:]))
        print(
            f"lazy attention, two identical backward passes: d_q differs by at most {apart:.1e} of its largest "
            f"element, the other gradients {'are bit-identical' if same else 'DIFFER'}"
        )
        rows.append({"shape": shape, "variant": "run to run", "d_q": apart, "others_identical": same})
        for name, why in failed.items():
            print(f"{name:32}failed: {why}")
            rows.append({"shape": shape, "variant": name, "failed": why})
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
