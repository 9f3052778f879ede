"""lazy_attention.attention: the operator torch.ops.lazy.attention with types and defaults."""

from __future__ import annotations

import warnings
from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor

from .arguments import check_types

Normalizer = Literal[
    "elastic", "softmax", "softmax_sink", "sigmoid", "sparsemax", "entmax15", "softpick", "elastic_sink"
]
TAKES_TAU, TAKES_SINK = ("elastic", "elastic_sink"), ("softmax_sink", "elastic_sink")  # normalizers
Offset = Literal["per_visible", "constant"]
MANY_HEADS = 256  # no published model has more query heads; a larger size is probably a sequence length


class AttentionOutput(NamedTuple):
    """Result of `attention` with ``return_lse``, ``return_stats`` or ``return_score_stats``."""

    out: Tensor
    """The attention output: q's shape and type, except that the last dimension has v's size."""
    lse: Tensor
    """fp32 (batch, heads, length), packed (heads, tokens): natural log-sum-exp of the visible scores, with the sink's
    term for "softmax_sink" and "elastic_sink"; the row's threshold for "sparsemax" and "entmax15"; the log of the
    denominator for "softpick"; empty for "sigmoid". No gradient."""
    stats: Tensor
    """fp32 (3, batch, heads, length), packed (3, heads, tokens): the weight on the sequence's first key, the released
    mass ``1 - sum of weights``, and the number of alive keys (keys with a nonzero weight). With ``return_score_stats``
    the shape is (5, ...), and two statistics of the visible scores s_ij follow: their maximum, and the entropy in nats
    of their softmax without the sink. Both are independent of the normalizer. Empty if no statistics are requested. No
    gradient."""


def check_layout(operator: str, q: Tensor, k: Tensor, causal: bool, per_head: tuple[Tensor | None, ...]) -> None:
    """Raises RuntimeError if q, k and the per-head parameters fit each other only in the layout of PyTorch's
    ``scaled_dot_product_attention``, (batch, heads, length, head_dim). Warns if that layout is likely, except under
    torch.compile."""
    if q.dim() != 4 or k.dim() != 4:
        return
    _, length, heads, _ = q.shape
    _, key_length, kv_heads, _ = k.shape
    sizes = [t.shape[0] for t in per_head if t is not None and t.dim() > 0]

    def fits(heads: int, kv_heads: int) -> bool:
        return kv_heads > 0 and heads % kv_heads == 0 and all(size == heads for size in sizes)

    hint = (
        "q, k and v must be (batch, length, heads, head_dim). These sizes fit (batch, heads, length, head_dim), the "
        "layout of scaled_dot_product_attention: pass q.transpose(1, 2), k.transpose(1, 2) and v.transpose(1, 2), and "
        "transpose the result back"
    )
    if not fits(heads, kv_heads):
        # If no parameter has a different size and q has more heads than k, the cause is an invalid number of heads
        # rather than a transposed layout, because a transposed layout would mean more queries than keys.
        evidence = any(size != heads for size in sizes) or heads < kv_heads
        if evidence and fits(length, key_length):
            received = f"heads {heads}, kv heads {kv_heads}" + (f", per-head parameters of {sizes[0]}" if sizes else "")
            raise RuntimeError(
                f"lazy::{operator}: expected q's heads to be a multiple of k's heads, and parameters per head of q, "
                f"received q {list(q.shape)} and k {list(k.shape)}, which are {received}: {hint}"
            )
    elif not sizes and not torch.compiler.is_compiling():
        if causal and heads == kv_heads and length > key_length > 0 and length % key_length == 0:
            warnings.warn(
                f"lazy::{operator}: q {list(q.shape)} has more queries than k {list(k.shape)} has keys, so the first "
                f"queries see no key. {hint}",
                stacklevel=3,
            )
        elif heads > MANY_HEADS >= length:
            warnings.warn(f"lazy::{operator}: q {list(q.shape)} has {heads} heads. {hint}", stacklevel=3)


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    distance_bias: Tensor | None = None,
    tau: Tensor | None = None,
    sink: Tensor | None = None,
    *,
    alibi_slopes: Tensor | None = None,
    normalizer: Normalizer = "elastic",
    offset: Offset = "per_visible",
    sigmoid_bias: float | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    causal: bool = True,
    window: int = -1,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    return_lse: Literal[False] = False,
    return_stats: Literal[False] = False,
    return_score_stats: Literal[False] = False,
    deterministic: bool = False,
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    distance_bias: Tensor | None = None,
    tau: Tensor | None = None,
    sink: Tensor | None = None,
    *,
    alibi_slopes: Tensor | None = None,
    normalizer: Normalizer = "elastic",
    offset: Offset = "per_visible",
    sigmoid_bias: float | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    causal: bool = True,
    window: int = -1,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    return_lse: bool = False,
    return_stats: bool = False,
    return_score_stats: bool = False,
    deterministic: bool = False,
) -> Tensor | AttentionOutput: ...


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    distance_bias: Tensor | None = None,
    tau: Tensor | None = None,
    sink: Tensor | None = None,
    *,
    alibi_slopes: Tensor | None = None,
    normalizer: Normalizer = "elastic",
    offset: Offset = "per_visible",
    sigmoid_bias: float | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    causal: bool = True,
    window: int = -1,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    return_lse: bool = False,
    return_stats: bool = False,
    return_score_stats: bool = False,
    deterministic: bool = False,
    **unknown,
) -> Tensor | AttentionOutput:
    r"""Attention with a choice of normalizers, without an n x n matrix (arXiv 2601.00919).

    **Layout: q, k, v and the result are (batch, length, heads, head_dim)**, as in FlashAttention. PyTorch's
    ``scaled_dot_product_attention`` has (batch, heads, length, head_dim): transpose dimensions 1 and 2 of q, k, v and
    of the result. A call whose sizes fit only PyTorch's layout raises RuntimeError. If q and k have the same shape and
    no per-head parameter is passed, sizes do not show the mistake; there is a warning for more than 256 heads.

        s_ij      = scale q_i . k_j + distance_bias[h, |i - j|] - alibi_slopes[h] |i - j|        (equation 4)
        weight_ij = max(softmax(s_i)_j + tau_h / c_i, 0)          normalizer "elastic"           (equation 5)
        out_i     = sum_j weight_ij v_j                           c_i: number of keys that query i sees

    | normalizer | weight_ij | needs |
    |---|---|---|
    | "elastic" | `max(softmax(s_i)_j + tau_h / c_i, 0)` | tau; offset="constant" drops / c_i |
    | "softmax" | `exp(s_ij) / sum_k exp(s_ik)` | |
    | "softmax_sink" | `p_ij = exp(s_ij) / (exp(sink_h) + sum_k exp(s_ik))` | sink (gpt-oss) |
    | "elastic_sink" | `max(p_ij + tau_h / c_i, 0)`, p_ij of "softmax_sink" | tau, offset, sink |
    | "sigmoid" | `1 / (1 + exp(-s_ij - b))`, `b = -ln c_i` unless sigmoid_bias | |
    | "sparsemax" | `max(s_ij - theta_i, 0)`, sums to 1 | |
    | "entmax15" | `max(s_ij / 2 - theta_i, 0)^2`, sums to 1 | |
    | "softpick" | `max(exp(s_ij) - 1, 0) / sum_k abs(exp(s_ik) - 1)` | |

    Args:
        q: (batch, length, heads, head_dim); packed by ``cu_seqlens``: (tokens, heads, head_dim). float32, bfloat16 or
            float16; float64 runs a slow reference implementation for tests. head_dim is 1 to 256. Strides are
            arbitrary.
        k: (batch, key length, kv heads, head_dim); heads is a multiple of kv heads (grouped queries).
        v: (batch, key length, kv heads, value dim).
        distance_bias: (heads, W), added to the scores at distances d = |i - j| < W. Default: no bias.
        tau: (heads), required by "elastic" and "elastic_sink", not allowed with other normalizers. The paper's initial
            value is -1.
        sink: (heads), required by "softmax_sink" and "elastic_sink", not allowed with other normalizers: a logit that
            receives weight but has no value vector.
        alibi_slopes: (heads), ALiBi: the slope times the distance is subtracted from the score.
        offset: "per_visible" adds tau / c_i, "constant" adds tau.
        sigmoid_bias: b in the table, only allowed with "sigmoid". Default: -ln c_i.
        scale: factor of the dot products. Default: head_dim ** -0.5.
        softcap: a positive number c: ``c tanh(scale q_i . k_j / c)`` replaces ``scale q_i . k_j``, before the distance
            bias, ALiBi, the mask and the normalizer (as in Gemma 2 and FlashAttention). None or 0: no soft-capping.
        causal: the causal mask is bottom-right aligned: the last query sees the last key, as required for a KV cache.
        window: a query sees the latest ``window`` keys, including its own key. Without causal: the keys at distances
            less than window. -1: no window.
        cu_seqlens_q: (documents + 1), int32 or int64, cumulative query lengths of packed documents. Positions and the
            visible count c_i restart in each document.
        cu_seqlens_k: (documents + 1), cumulative key lengths of the packed documents.
        return_lse: return an `AttentionOutput` instead of only the output tensor.
        return_stats: return an `AttentionOutput` with statistics.
        return_score_stats: return an `AttentionOutput` with statistics and score statistics.
        deterministic: results are bitwise reproducible, and the gradients of "elastic" and "elastic_sink" use exact
            sums instead of a rounded result. The CPU kernels always do both.

    The parameters distance_bias, tau, sink and alibi_slopes are float32 (float64 if q is float64). Under
    ``torch.autocast``, q, k and v of the types float32, bfloat16 and float16 are cast to the autocast type, as in
    PyTorch's scaled_dot_product_attention. The parameters are not cast, because they decide which query-key pairs have
    a nonzero weight.

    Returns:
        out, (batch, length, heads, value dim), of q's type; or `AttentionOutput`.

    Differentiable with respect to q, k, v, distance_bias, tau, sink and alibi_slopes. Second derivatives, forward-mode
    derivatives (``torch.func.jvp``, dual tensors) and ``torch.func.grad`` raise NotImplementedError.

    ``torch.autograd.gradcheck`` (in float64) reports a mismatch at tau = -1, where the weight max(1 + tau, 0) of the
    first query, which only sees its own key, has a kink. Use another value, such as -0.9.

    Raises:
        TypeError: an argument of the wrong type, for example a number, list or array where a tensor is expected, or an
            unknown argument, such as ``is_causal`` of scaled_dot_product_attention.
        RuntimeError: ``lazy::attention: expected ..., received ...``, before anything is computed, for invalid shapes,
            types or devices, a parameter that the normalizer does not use, decreasing cu_seqlens, or a problem that no
            fast kernel supports (the operator never falls back to a slow implementation).
    """
    options = dict(
        alibi_slopes=alibi_slopes,
        normalizer=normalizer,
        offset=offset,
        sigmoid_bias=sigmoid_bias,
        scale=scale,
        softcap=softcap,
        causal=causal,
        window=window,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        deterministic=deterministic,
    )
    check_types(
        "attention",
        q=q,
        k=k,
        v=v,
        distance_bias=distance_bias,
        tau=tau,
        sink=sink,
        return_lse=return_lse,
        return_stats=return_stats,
        return_score_stats=return_score_stats,
        **options,
        **unknown,
    )
    check_layout("attention", q, k, causal, (distance_bias, tau, sink, alibi_slopes))
    return_stats_level = 2 if return_score_stats else return_stats
    out, lse, stats = torch.ops.lazy.attention(
        q, k, v, distance_bias, tau, sink, return_stats=return_stats_level, **options
    )
    return AttentionOutput(out, lse, stats) if return_lse or return_stats or return_score_stats else out
