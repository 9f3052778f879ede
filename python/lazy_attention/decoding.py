"""lazy_attention.decode: the operator torch.ops.lazy.decode, attention of a few query rows to a long KV cache."""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import check_types
from .operator import AttentionOutput, Normalizer, Offset, attention, check_layout

MAX_DECODE_ROWS = (
    8  # maximum number of query rows for which decode is used; must equal the constant in src/ops/decode.h
)


def decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_lengths: Tensor,
    distance_bias: Tensor | None = None,
    tau: Tensor | None = None,
    sink: Tensor | None = None,
    *,
    block_table: Tensor | None = None,
    visible_count: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    normalizer: Normalizer = "elastic",
    offset: Offset = "per_visible",
    sigmoid_bias: float | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    causal: bool = True,
    window: int = -1,
    return_lse: bool = False,
    return_stats: bool = False,
    return_score_stats: bool = False,
    **unknown,
) -> Tensor | AttentionOutput:
    """Attention of each sequence's newest tokens to its KV cache, as defined by `lazy_attention.attention`.

    Scores are computed once, and only the rows of V with a nonzero weight are read. The operator has no gradient, and
    raises NotImplementedError if an argument requires one: call it under ``torch.no_grad()``. The layout is (batch,
    length, heads, head_dim). The caches of transformers have the layout (batch, kv heads, length, head_dim) and need
    ``transpose(1, 2)``.

    Args:
        q: (batch, rows, heads, head_dim), the queries of the newest tokens, whose keys must already be in the cache.
            The operator stores one float per query row and key, so the number of rows should be small.
        k_cache: (batch, capacity, kv heads, head_dim). Paged cache: (pages, page size, kv heads, head_dim).
        v_cache: same shape as k_cache, except that the last dimension is the value dim.
        cache_lengths: (batch), int32 or int64: number of keys in each sequence's cache. Keys after these are not read.
        block_table: (batch, maximum number of pages per sequence), int32 or int64: key j of sequence b is token
            j % page_size of page block_table[b, j // page_size]. None: the cache is not paged.
        visible_count: (batch), int32 or int64: the key count c_i of the newest query row, which is used in tau / c_i
            and in the sigmoid bias -ln c_i. Pass it if keys have been evicted from the cache. Default: the number of
            keys that the row sees.

    The other arguments are the same as in `lazy_attention.attention`.

    Returns out (batch, rows, heads, value dim), or `lazy_attention.AttentionOutput`.

    Raises RuntimeError, ``lazy::decode: expected ..., received ...``, for wrong shapes and types, for a length above
    the capacity and for a page index out of range. Raises TypeError for an argument of the wrong type, for example a
    number, list or array in place of a tensor, and for an unknown argument.
    """
    options = dict(
        block_table=block_table,
        visible_count=visible_count,
        alibi_slopes=alibi_slopes,
        normalizer=normalizer,
        offset=offset,
        sigmoid_bias=sigmoid_bias,
        scale=scale,
        softcap=softcap,
        causal=causal,
        window=window,
    )
    check_types(
        "decode",
        q=q,
        k_cache=k_cache,
        v_cache=v_cache,
        cache_lengths=cache_lengths,
        distance_bias=distance_bias,
        tau=tau,
        sink=sink,
        return_lse=return_lse,
        return_stats=return_stats,
        return_score_stats=return_score_stats,
        **options,
        **unknown,
    )
    if block_table is None:
        check_layout("decode", q, k_cache, causal, (distance_bias, tau, sink, alibi_slopes))
    return_stats_level = 2 if return_score_stats else return_stats
    out, lse, stats = torch.ops.lazy.decode(
        q, k_cache, v_cache, cache_lengths, distance_bias, tau, sink, return_stats=return_stats_level, **options
    )
    return AttentionOutput(out, lse, stats) if return_lse or return_stats or return_score_stats else out


def attention_or_decode(q: Tensor, k: Tensor, v: Tensor, **arguments) -> Tensor | AttentionOutput:
    """Attention to a whole cache. Calls `decode` if gradients are disabled, there are at most MAX_DECODE_ROWS query
    rows and there are more keys than query rows. Otherwise calls `attention`."""
    if torch.is_grad_enabled() or q.shape[1] > MAX_DECODE_ROWS or q.shape[1] >= k.shape[1]:
        return attention(q, k, v, **arguments)
    lengths = torch.full((q.shape[0],), k.shape[1], device=q.device)
    return decode(q, k, v, lengths, **arguments)
