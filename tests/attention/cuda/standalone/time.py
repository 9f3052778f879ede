#!/usr/bin/env python3
"""Measures the time of our CUDA kernels and of PyTorch's SDPA (cuDNN, FlashAttention-2) in one process. Checks the
results of our kernels first.

    device.sh builds liblazy_cuda.so; then run: time.py LIBRARY [kernel ...]
Inputs are random, bf16, causal, with 16 heads. Times are medians in milliseconds. The ratios "cudnn/ours" and
"flash2/ours" are the time of cuDNN or FlashAttention-2 divided by the time of our kernels.
"""

import ctypes
import os
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

library = ctypes.CDLL(sys.argv[1])
library.lazy_workspace.restype = ctypes.c_int64
kernels = sys.argv[2:] or ["portable"]
KERNEL = {"automatic": 0, "plain": 1, "portable": 2, "hopper": 3}
NORMALIZER = {"softmax": 0, "elastic": 1}


def median_ms(work, repeat=20):
    for _ in range(3):
        work()
    times = []
    for _ in range(repeat):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


class Case:
    def __init__(self, batch, length, dim, heads=16):
        self.shape = (batch, length, heads, dim)
        self.q, self.k, self.v, self.do = (
            torch.randn(self.shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)
        )
        self.bias = torch.randn(heads, 512, device="cuda") * 1e-1
        self.tau = torch.full((heads,), -1.0, device="cuda")
        self.out = torch.empty_like(self.q)
        self.dq, self.dk, self.dv = (torch.empty_like(self.q) for _ in range(3))
        self.lse = torch.empty(batch, heads, length, device="cuda")
        self.stats = torch.empty(3, batch, heads, length, device="cuda")
        self.dbias, self.dtau = torch.empty_like(self.bias), torch.empty_like(self.tau)
        self.workspace = None

    def call(self, backward, kernel, normalizer="elastic", bias=True, stats=False, deterministic=False):
        pointer = lambda t, use=True: ctypes.c_void_p(t.data_ptr() if use and t is not None else 0)
        batch, length, heads, dim = self.shape
        elastic = normalizer == "elastic"
        arguments = [
            ctypes.c_int(x)
            for x in (
                int(backward),
                KERNEL[kernel],
                NORMALIZER[normalizer],
                int(deterministic),
                batch,
                length,
                heads,
                dim,
                512 if bias else 0,
            )
        ]
        if backward and self.workspace is None:
            self.workspace = torch.empty(library.lazy_workspace(*arguments), device="cuda", dtype=torch.uint8)
        failed = library.lazy_attention(
            *arguments,
            pointer(self.q),
            pointer(self.k),
            pointer(self.v),
            pointer(self.bias, bias),
            pointer(self.tau, elastic),
            pointer(self.out),
            pointer(self.lse),
            pointer(self.stats, stats),
            pointer(self.do),
            pointer(self.dq),
            pointer(self.dk),
            pointer(self.dv),
            pointer(self.dbias, bias),
            pointer(self.dtau, elastic),
            pointer(self.workspace),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )
        if failed:
            sys.exit("lazy_attention returned an error")

    def reference(self, normalizer, bias, batch, head):
        """Computes out, dq, dk and dv of one batch entry and head with PyTorch in fp32."""
        n = self.shape[1]
        q, k, v = (x[batch, :, head].float().requires_grad_() for x in (self.q, self.k, self.v))
        b, tau = self.bias[head].clone().requires_grad_(), self.tau[head].clone().requires_grad_()
        i = torch.arange(n, device="cuda")
        distance = i[:, None] - i[None]
        s = q @ k.T / q.shape[1] ** 0.5
        if bias:
            s = s + torch.where((distance >= 0) & (distance < 512), b[distance.clamp(0, 511)], 0.0)
        visible = distance >= 0
        p = torch.softmax(s.masked_fill(~visible, -torch.inf), -1)
        if normalizer == "elastic":
            p = torch.relu(p + tau / (i + 1)[:, None]) * visible
        out = p @ v
        out.backward(self.do[batch, :, head].float())
        return {"out": out, "dq": q.grad, "dk": k.grad, "dv": v.grad}


def relative(a, b):
    return ((a.float() - b).norm() / b.norm()).item()


def peers(case):
    q, k, v = (x.transpose(1, 2).contiguous().requires_grad_() for x in (case.q, case.k, case.v))
    do = case.do.transpose(1, 2).contiguous()
    times = {}
    for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash2", SDPBackend.FLASH_ATTENTION)):
        with sdpa_kernel(backend):
            run = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            with torch.no_grad():
                forward = median_ms(run)
            out = run()
            backward = median_ms(lambda: torch.autograd.grad(out, (q, k, v), do, retain_graph=True))
        times[name] = (forward, backward)
    return times


torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = False
shapes = [(8, 4096, 64), (8, 4096, 128), (2, 16384, 64), (2, 16384, 128), (32, 1024, 64)]
if os.environ.get("LAZY_TIME_SHORT"):
    shapes = shapes[:2]
for shape in shapes:
    case = Case(*shape)
    batch, length, dim = shape
    flops = 4 * batch * 16 * length * length * dim / 2
    rival = peers(case)
    for name, (forward, backward) in rival.items():
        print(
            f"{batch} x {length}, {dim}  {name:34} forward {forward:7.3f} ms {flops / forward / 1e9:5.0f} TFLOP/s"
            f"   backward {backward:7.3f} ms"
        )
    cf, cb = rival["cudnn"]
    ff, fb = rival["flash2"]
    for kernel in kernels:
        for normalizer, bias in (("elastic", True), ("elastic", False), ("softmax", False)):
            if length <= 4096:
                case.call(False, kernel, normalizer, bias)
                case.call(True, kernel, normalizer, bias)
                expected = case.reference(normalizer, bias, batch - 1, 3)
                found = {"out": case.out, "dq": case.dq, "dk": case.dk, "dv": case.dv}
                worst = {n: relative(found[n][batch - 1, :, 3], e.detach()) for n, e in expected.items()}
                bad = {n: x for n, x in worst.items() if not x < 2e-2}
                if bad:
                    print(f"WRONG {kernel} {normalizer} bias {bias}: {worst}")
                    continue
            inference = median_ms(lambda case=case: case.call(False, kernel, normalizer, bias))
            stats = median_ms(lambda case=case: case.call(False, kernel, normalizer, bias, stats=True))
            case.call(False, kernel, normalizer, bias)
            backward = median_ms(lambda case=case: case.call(True, kernel, normalizer, bias))
            print(
                f"{batch} x {length}, {dim}  {kernel + ' ' + normalizer + (' bias' if bias else ''):34} forward "
                f"{inference:7.3f} ms (stats {stats:7.3f})   backward {backward:7.3f} ms   "
                f"cudnn/ours fwd {cf / inference:.2f} fwd+bwd {(cf + cb) / (inference + backward):.2f}   "
                f"flash2/ours fwd {ff / inference:.2f} fwd+bwd {(ff + fb) / (inference + backward):.2f}",
                flush=True,
            )
    del case
    torch.cuda.empty_cache()
