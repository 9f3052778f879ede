"""lazy_attention.attention: the operator torch.ops.lazy.attention with types and defaults."""

from __future__ import annotations

import reprlib
import warnings
from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor

from . import _library  # noqa: F401  registers torch.ops.lazy

Normalizer = Literal["elastic", "softmax", "softmax_sink", "sigmoid", "sparsemax", "entmax15", "softpick"]
Offset = Literal["per_visible", "constant"]


class AttentionOutput(NamedTuple):
    """Result of `attention` with ``return_lse``, ``return_stats`` or ``return_score_stats``."""

    out: Tensor
    """Like q, with v's last dimension."""
    lse: Tensor
    """fp32 (batch, heads, length), packed (heads, tokens): natural log-sum-exp of the visible scores, with the sink's
    term for "softmax_sink"; the row's threshold for "sparsemax" and "entmax15"; the log of the denominator for
    "softpick"; empty for "sigmoid". No gradient."""
    stats: Tensor
    """fp32 (3, batch, heads, length), packed (3, heads, tokens): weight on the sequence's first key, released mass
    ``1 - sum of weights``, number of alive keys. With ``return_score_stats`` (5, ...): behind these, of the scores
    s_ij that the query sees, whatever the normalizer: their maximum, and the entropy of their softmax in nats (without
    the sink). Empty if neither is asked for. No gradient."""


# The shapes that messages name; packed tensors have no batch axis.
_SHAPES = {
    **dict.fromkeys(("q", "k", "v", "k_cache", "v_cache"), "(batch, length, heads, head_dim)"),
    **dict.fromkeys(("tau", "sink", "alibi_slopes"), "(heads)"),
    "distance_bias": "(heads, W)",
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), "(documents + 1) and type int32 or int64"),
    **dict.fromkeys(("cache_lengths", "visible_count"), "(batch) and type int32 or int64"),
    "block_table": "(batch, pages) and type int32 or int64",
}
_OPTIONAL = (
    "distance_bias",
    "tau",
    "sink",
    "alibi_slopes",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "block_table",
    "visible_count",
)


def check_types(operator: str, window: int, **tensors: Tensor | None) -> None:
    """Raises TypeError for numbers, lists and arrays where the operator takes tensors, and for a window that is not an
    integer."""
    for name, value in tensors.items():
        if not isinstance(value, Tensor) and not (value is None and name in _OPTIONAL):
            raise TypeError(
                f"lazy::{operator}: expected {name} to be a tensor of shape {_SHAPES[name]}"
                f"{', or None' if name in _OPTIONAL else ''}, found {type(value).__name__} {reprlib.repr(value)}"
            )
    if isinstance(window, bool) or not (isinstance(window, int) or hasattr(window, "__index__")):
        raise TypeError(
            f"lazy::{operator}: expected window to be an integer, -1 (none) or at least 1, "
            f"found {type(window).__name__} {reprlib.repr(window)}"
        )


def check_layout(operator: str, q: Tensor, k: Tensor, causal: bool, per_head: tuple[Tensor | None, ...]) -> None:
    """Raises RuntimeError if q, k and the per-head parameters fit each other only in the layout of PyTorch's
    ``scaled_dot_product_attention``, (batch, heads, length, head_dim). Warns if that layout is likely."""
    if torch.compiler.is_compiling() or q.dim() != 4 or k.dim() != 4:
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
        # Without a parameter of another size, more heads than key heads are a layout with heads that do not divide, not
        # one with more queries than keys.
        evidence = any(size != heads for size in sizes) or heads < kv_heads
        if evidence and fits(length, key_length):
            received = f"heads {heads}, kv heads {kv_heads}" + (f", per-head parameters of {sizes[0]}" if sizes else "")
            raise RuntimeError(
                f"lazy::{operator}: expected q's heads to be a multiple of k's heads, and parameters per head of q, "
                f"received q {list(q.shape)} and k {list(k.shape)}, which are {received}: {hint}"
            )
    elif not sizes and causal and heads == kv_heads and length > key_length > 0 and length % key_length == 0:
        warnings.warn(
            f"lazy::{operator}: q {list(q.shape)} has more queries than k {list(k.shape)} has keys, so the first "
            f"queries see no key. {hint}",
            stacklevel=3,
        )


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
) -> Tensor | AttentionOutput:
    r"""Attention with a choice of normalizers, without an n x n matrix (arXiv 2601.00919).

    **Layout: q, k, v and the result are (batch, length, heads, head_dim)**, as in FlashAttention. PyTorch's
    ``scaled_dot_product_attention`` has (batch, heads, length, head_dim): transpose dimensions 1 and 2 of q, k, v and
    of the result. A call whose sizes fit only that layout is a RuntimeError. The mistake cannot be detected if q and k
    have the same shape and there is no per-head parameter.

        s_ij      = scale q_i . k_j + distance_bias[h, |i - j|] - alibi_slopes[h] |i - j|        (equation 4)
        weight_ij = max(softmax(s_i)_j + tau_h / c_i, 0)          normalizer "elastic"           (equation 5)
        out_i     = sum_j weight_ij v_j                           c_i: number of keys that query i sees

    | normalizer | weight_ij | needs |
    |---|---|---|
    | "elastic" | `max(softmax(s_i)_j + tau_h / c_i, 0)` | tau; offset="constant" drops / c_i |
    | "softmax" | `exp(s_ij) / sum_k exp(s_ik)` | |
    | "softmax_sink" | `exp(s_ij) / (exp(sink_h) + sum_k exp(s_ik))` | sink (gpt-oss) |
    | "sigmoid" | `1 / (1 + exp(-s_ij - b))`, `b = -ln c_i` unless sigmoid_bias | |
    | "sparsemax" | `max(s_ij - theta_i, 0)`, sums to 1 | |
    | "entmax15" | `max(s_ij / 2 - theta_i, 0)^2`, sums to 1 | |
    | "softpick" | `max(exp(s_ij) - 1, 0) / sum_k abs(exp(s_ik) - 1)` | |

    Args:
        q: (batch, length, heads, head_dim); packed by ``cu_seqlens``: (tokens, heads, head_dim). float32, bfloat16 or
            float16; float64 runs the reference in plain loops, for checking. head_dim 1 to 256. Any strides.
        k: (batch, key length, kv heads, head_dim); heads is a multiple of kv heads (grouped queries).
        v: (batch, key length, kv heads, value dim).
        distance_bias: (heads, W), added to the score at distance d = |i - j| < W, nothing beyond. Default none.
        tau: (heads), with "elastic" only, and then required. -1 is the paper's initial value.
        sink: (heads), with "softmax_sink" only, and then required: a logit that takes weight and has no value.
        alibi_slopes: (heads), subtracted times the distance.
        offset: "per_visible" adds tau / c_i, "constant" adds tau.
        sigmoid_bias: with "sigmoid" only; default -ln c_i.
        scale: default head_dim ** -0.5.
        softcap: c, a number above zero: ``c tanh(scale q_i . k_j / c)`` takes the place of ``scale q_i . k_j``, before
            the distance bias, ALiBi, the mask and the normalizer (Gemma 2, FlashAttention). None or 0: no soft-capping.
        causal: bottom-right aligned: the last query sees the last key, so that a KV cache needs nothing special.
        window: a query sees the ``window`` latest keys, its own included; not causal: keys at distance < window.
            -1: all.
        cu_seqlens_q: (documents + 1), int32 or int64, cumulative lengths of packed documents. Positions and the
            visible count start anew in each.
        cu_seqlens_k: the same of the keys.
        return_lse: return an `AttentionOutput` instead of the result alone.
        return_stats: the same, with the statistics.
        return_score_stats: the same, with the statistics of the scores too.
        deterministic: same bits in every run, and elastic's gradients from exact sums instead of a rounded result (the
            CPU kernels always have both).

    The parameters distance_bias, tau, sink and alibi_slopes are float32 (float64 when q is). Under ``torch.autocast``
    float32, bfloat16 and float16 q, k, v are cast to autocast's type, as PyTorch's own attention does; the parameters
    are not, because they decide which pairs are alive.

    Returns:
        out, (batch, length, heads, value dim), of q's type; or `AttentionOutput`.

    Gradients: q, k, v, distance_bias, tau, sink, alibi_slopes. A second derivative is a RuntimeError.
    A forward-mode derivative (``torch.func.jvp``, dual tensors) is a NotImplementedError.

    Raises:
        TypeError: a number, list or array where a tensor is expected, or a window that is not an integer.
        RuntimeError: ``lazy::attention: expected ..., received ...``, before anything is computed: shapes, types,
            devices, a parameter that the normalizer does not take, cu_seqlens that fall, or a problem that no fast
            kernel serves (there is no silent slow path).
    """
    check_types(
        "attention",
        window,
        q=q,
        k=k,
        v=v,
        distance_bias=distance_bias,
        tau=tau,
        sink=sink,
        alibi_slopes=alibi_slopes,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
    )
    check_layout("attention", q, k, causal, (distance_bias, tau, sink, alibi_slopes))
    out, lse, stats = torch.ops.lazy.attention(
        q,
        k,
        v,
        distance_bias,
        tau,
        sink,
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
        return_stats=2 if return_score_stats else return_stats,
        deterministic=deterministic,
    )
    return AttentionOutput(out, lse, stats) if return_lse or return_stats or return_score_stats else out
