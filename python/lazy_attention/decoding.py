"""lazy_attention.decode: the operator torch.ops.lazy.decode, one to a few query rows against a long cache."""

from __future__ import annotations

import torch
from torch import Tensor

from .operator import AttentionOutput, Normalizer, Offset, attention, check_layout, check_types

FEW_ROWS = 8  # largest number of query rows that uses decode; equal to the constant in src/ops/decode.h


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
) -> Tensor | AttentionOutput:
    """Attention of each sequence's newest tokens to its cache, as `lazy_attention.attention` defines it.

    Scores are computed once, and only rows of V with weight are read. It has no gradient. The layout is (batch, length,
    heads, head_dim): transformers' caches, (batch, kv heads, length, head_dim), need ``transpose(1, 2)``.

    Args:
        q: (batch, rows, heads, head_dim): the newest tokens; the cache already holds their keys. Scores are kept, a
            float for each row and key, so rows should be few.
        k_cache: (batch, capacity, kv heads, head_dim); paged: (pages, page size, kv heads, head_dim).
        v_cache: as k_cache, with value dim.
        cache_lengths: (batch), int32 or int64: keys in each sequence's cache. Nothing beyond is read.
        block_table: (batch, pages of a sequence at most), int32 or int64: key j of sequence b is token j % page_size
            of page block_table[b, j // page_size]. None: the cache is not paged.
        visible_count: (batch), int32 or int64: the count that tau / c_i (and sigmoid's -ln c_i) use for the newest
            row, where a cache has evicted keys. Default: the keys that the row sees.

    The other arguments are those of `lazy_attention.attention`.

    Returns out (batch, rows, heads, value dim), or `lazy_attention.AttentionOutput`.

    Raises RuntimeError, ``lazy::decode: expected ..., received ...``, for wrong shapes and types, a length beyond the
    capacity and a page out of range. Raises TypeError for a number, list or array where a tensor is expected.
    """
    check_types(
        "decode",
        window,
        q=q,
        k_cache=k_cache,
        v_cache=v_cache,
        cache_lengths=cache_lengths,
        distance_bias=distance_bias,
        tau=tau,
        sink=sink,
        block_table=block_table,
        visible_count=visible_count,
        alibi_slopes=alibi_slopes,
    )
    if block_table is None:
        check_layout("decode", q, k_cache, causal, (distance_bias, tau, sink, alibi_slopes))
    out, lse, stats = torch.ops.lazy.decode(
        q,
        k_cache,
        v_cache,
        cache_lengths,
        distance_bias,
        tau,
        sink,
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
        return_stats=2 if return_score_stats else return_stats,
    )
    return AttentionOutput(out, lse, stats) if return_lse or return_stats or return_score_stats else out


def attention_or_decode(q: Tensor, k: Tensor, v: Tensor, **arguments) -> Tensor | AttentionOutput:
    """`attention` of whole caches, through `decode` where gradients are off and few rows meet more keys."""
    if torch.is_grad_enabled() or q.shape[1] > FEW_ROWS or q.shape[1] >= k.shape[1]:
        return attention(q, k, v, **arguments)
    lengths = torch.full((q.shape[0],), k.shape[1], device=q.device)
    return decode(q, k, v, lengths, **arguments)
