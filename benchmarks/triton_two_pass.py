"""Elastic-Softmax attention with a distance bias as a straightforward Triton kernel, forward only.

The first pass over the keys computes the maximum score and the sum of exponentials of each row. The second pass
computes the scores again, the weights max(p + tau / i, 0), and the weighted sum of V (arXiv 2601.00919, equations 4 and
5).
Limitations: causal, bf16 or fp16; q, k and v are contiguous (batch, length, heads, head_dim); the length is a multiple
of 128.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _scores(q, k_pointer, rows, keys, stride, bias, window, scale, USE_BIAS: tl.constexpr, D: tl.constexpr):
    k = tl.load(k_pointer + keys[None, :] * stride + tl.arange(0, D)[:, None])
    s = tl.dot(q, k) * (scale * 1.4426950408889634)
    distance = rows[:, None] - keys[None, :]
    if USE_BIAS:
        near = (distance >= 0) & (distance < window)
        s += tl.load(bias + distance, mask=near, other=0.0) * 1.4426950408889634
    return tl.where(distance >= 0, s, float("-inf"))


@triton.autotune(
    [
        triton.Config({"M": m, "N": n}, num_warps=w, num_stages=s)
        for m, n, w, s in [(128, 64, 4, 3), (128, 128, 8, 2), (128, 64, 8, 3), (64, 64, 4, 3)]
    ],
    key=["length", "D"],
)
@triton.jit
def _forward(
    q,
    k,
    v,
    bias,
    tau,
    out,
    length,
    heads,
    window,
    scale,
    USE_BIAS: tl.constexpr,
    D: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    block, head, batch = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    start = batch * length * heads * D + head * D
    stride = heads * D
    rows = block * M + tl.arange(0, M)
    dims = tl.arange(0, D)
    query = tl.load(q + start + rows[:, None] * stride + dims[None, :])
    bias += head * window
    largest = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    end = (block + 1) * M
    for first in range(0, end, N):
        s = _scores(query, k + start, rows, first + tl.arange(0, N), stride, bias, window, scale, USE_BIAS, D)
        m = tl.maximum(largest, tl.max(s, 1))
        total = total * tl.exp2(largest - m) + tl.sum(tl.exp2(s - m[:, None]), 1)
        largest = m
    offset = tl.load(tau + head) / (rows + 1)
    inverse = 1 / total
    sums = tl.zeros([M, D], tl.float32)
    for first in range(0, end, N):
        keys = first + tl.arange(0, N)
        s = _scores(query, k + start, rows, keys, stride, bias, window, scale, USE_BIAS, D)
        weight = tl.maximum(tl.exp2(s - largest[:, None]) * inverse[:, None] + offset[:, None], 0.0)
        values = tl.load(v + start + keys[:, None] * stride + dims[None, :])
        sums += tl.dot(weight.to(values.dtype), values)
    tl.store(out + start + rows[:, None] * stride + dims[None, :], sums.to(query.dtype))


def attention(q, k, v, bias, tau):
    """Computes Elastic-Softmax attention. tau: (heads), negative, fp32. bias: (heads, window), fp32, or None. Returns a
    tensor of the shape and type of q."""
    batch, length, heads, dim = q.shape
    assert length % 128 == 0 and all(x.is_contiguous() for x in (q, k, v))
    out = torch.empty_like(q)
    table = bias if bias is not None else tau
    _forward[lambda meta: (length // meta["M"], heads, batch)](
        q,
        k,
        v,
        table,
        tau,
        out,
        length,
        heads,
        bias.shape[1] if bias is not None else 0,
        dim**-0.5,
        bias is not None,
        dim,
    )
    return out
