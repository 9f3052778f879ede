"""Converts transformers' attention masks to packed documents, the form that the operator accepts.

transformers describes a mask by a padding mask and a function of the indices (batch, head, query, key). Models pass the
converted mask to the attention function. The operator supports causal or full attention, a sliding window, and packed
documents that do not see each other. Padding is represented by documents, too: each run of padding keys is a separate
document, so that no tensor has to be gathered or copied. The converted mask is None if every batch row is one document.
Otherwise it is an int32 tensor (1, 1, 2, documents + 1) with the cu_seqlens of the queries and of the keys, in which
the rows of the batch are concatenated. It has four dimensions because transformers passes four-dimensional masks
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function


def is_documents(mask: Tensor) -> bool:
    return mask.dtype == torch.int32 and mask.dim() == 4 and tuple(mask.shape[:3]) == (1, 1, 2)


def _evaluator(mask_function: Callable, batch: int, use_vmap: bool, device) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns a function that evaluates the mask for n pairs of a query and a key in every batch row. Its arguments are
    the query positions (n) and the key positions (n); its result is a bool tensor (batch, n), True if the query sees
    the key. `use_vmap` evaluates mask functions that only accept scalar indices."""
    rows = torch.arange(batch, device=device)[:, None]
    head = torch.zeros((), dtype=torch.long, device=device)
    if not use_vmap:
        return lambda q, k: mask_function(rows, head, q[None], k[None]).expand(batch, q.shape[0])
    one = torch.vmap(torch.vmap(mask_function, (None, None, 0, 0)), (0, None, None, None))
    return lambda q, k: one(rows[:, 0], head, q, k)


def _check(
    visible: Callable[[Tensor, Tensor], Tensor],
    document: Tensor,
    q: Tensor,
    kv_offset: int,
    kv_length: int,
    window: int | None,
) -> None:
    """Raises ValueError if the mask is not the mask of these packed documents with this sliding window. Only pairs of
    query and key at the distances -1, 1, 2, 4, ... and at the edge of the window are tested. This takes O(n log n)
    evaluations of the mask function instead of O(n^2)."""
    distances = {-1} | {2**n for n in range(kv_length.bit_length())}
    if window is not None:
        distances |= {window - 1, window}
    for distance in sorted(distances):
        k = q - distance
        inside = (k >= kv_offset) & (k < kv_offset + kv_length)
        if not bool(inside.any()):
            continue
        rows, keys = q[inside], k[inside]
        same = document[:, rows - kv_offset] == document[:, keys - kv_offset]
        expected = same & (distance >= 0) & (window is None or distance < window)
        if not torch.equal(visible(rows, keys), expected):
            raise ValueError(
                'attn_implementation="lazy": expected a mask that is causal, with a sliding window, padding or packed '
                f'documents, received another pattern (at distance {distance}); use "sdpa" or "eager" for it'
            )


def _documents_of_keys(
    mask_function: Callable,
    batch: int,
    q_length: int,
    kv_length: int,
    q_offset,
    kv_offset: int,
    window: int | None,
    use_vmap: bool,
    device,
    check: bool,
) -> Tensor:
    """Returns the document index of every key, (batch, kv_length). The indices of a row are non-decreasing."""
    visible = _evaluator(mask_function, batch, use_vmap, device)
    keys = torch.arange(kv_length, device=device) + kv_offset
    first = q_offset + torch.zeros((), dtype=torch.long, device=device)  # position of the first query
    last = first + q_length - 1
    # Keys before the first query: the keys that the first query sees belong to the first query's document. Keys outside
    # its sliding window are assigned to this document as well.
    before = visible(first.expand(kv_length), torch.minimum(keys, first))
    if window is not None:
        before = before | (first - keys >= window)
    # Keys from the first query onward: a document begins at every query that does not see the preceding key.
    behind = torch.minimum(keys, last)
    after = visible(behind, (behind - 1).clamp_min(kv_offset))
    if window == 1:
        after = torch.ones_like(after)
    linked = torch.where(keys <= first, torch.cat((before[:, :1], before[:, :-1]), 1) == before, after)
    linked = linked & (keys != last + 1)  # unused cache slots after the last query form a separate document
    linked = torch.cat((torch.ones_like(linked[:, :1]), linked[:, 1:]), 1)
    document = (~linked).cumsum(1)
    if check:
        _check(visible, document, first + torch.arange(q_length, device=device), kv_offset, kv_length, window)
    return document


def _cu_seqlens(begins: Tensor, queries_before: Tensor, q_length: int) -> Tensor:
    """Computes the cu_seqlens of queries and keys. begins (batch, kv_length): True where a document begins at this key.
    queries_before (batch, kv_length): number of queries of the same batch row before this key."""
    batch, kv_length = begins.shape
    total = batch * kv_length
    row = torch.arange(batch, device=begins.device)[:, None]
    index = torch.arange(total, device=begins.device)
    ends = begins.new_full((1,), total, dtype=torch.long)
    if torch.compiler.is_compiling():  # static shape: pad with empty documents at the end
        begin = torch.where(begins.flatten(), index, total).sort().values
    else:
        begin = begins.flatten().nonzero()[:, 0]
    before = (queries_before.clamp(0, q_length) + row * q_length).flatten()
    before = torch.cat((before, before.new_full((1,), batch * q_length)))
    cu_k = torch.cat((begin, ends))
    return torch.stack((before[cu_k], cu_k)).to(torch.int32)[None, None]


def lazy_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset=0,
    kv_offset: int = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    device="cpu",
    **_,
) -> Tensor | None:
    """Creates the mask for attn_implementation="lazy" (see the top of this file). transformers calls this function with
    the same arguments as ``sdpa_mask``.

    Raises ValueError for a mask that the operator cannot represent. Under torch.compile the values of the mask cannot
    be read, so the mask is not checked.
    """
    compiling = torch.compiler.is_compiling()
    padding = None
    if attention_mask is not None:
        padding = attention_mask.to(device=device, dtype=torch.bool)
        padding = torch.nn.functional.pad(padding, (0, max(kv_length + kv_offset - padding.shape[1], 0)))
        padding = padding[:, kv_offset : kv_offset + kv_length].expand(batch_size, -1)
        if not compiling and bool(padding.all()):
            padding = None
    start = q_offset - kv_offset  # index of the first query's own key
    fills = not isinstance(start, Tensor) and start + q_length == kv_length
    full = mask_function is bidirectional_mask_function
    if padding is None and (full or (mask_function is causal_mask_function and fills)):
        return None
    keys = torch.arange(kv_length, device=device)
    if full:
        return _full_attention_documents(padding, q_length, compiling)
    if mask_function is causal_mask_function:
        document = (keys > start + q_length - 1).long().expand(batch_size, -1)
    else:
        document = _documents_of_keys(
            mask_function,
            batch_size,
            q_length,
            kv_length,
            q_offset,
            kv_offset,
            local_size,
            use_vmap,
            device,
            check=not compiling,
        )
    begins = torch.cat((torch.ones_like(document[:, :1]), document.diff(dim=1)), 1) != 0
    if padding is not None:
        edges = padding[:, 1:] != padding[:, :-1]
        if not compiling:
            _check_padding(padding, edges)
        begins = torch.cat((begins[:, :1], begins[:, 1:] | edges), 1)
    if not compiling and fills and int(begins.sum()) == batch_size:
        return None
    return _cu_seqlens(begins, (keys - start).expand(batch_size, -1), q_length)


def _check_padding(padding: Tensor, edges: Tensor) -> None:
    runs = (edges & padding[:, 1:]).sum(1) + padding[:, 0]
    if bool((runs > 1).any()):
        row = int(runs.argmax())
        raise ValueError(
            f'attn_implementation="lazy": expected a padding mask with one run of ones per row, received '
            f"{int(runs[row])} runs in row {row}; to generate from a padded batch, pad on the left"
        )


def _full_attention_documents(padding: Tensor, q_length: int, compiling: bool) -> Tensor:
    """Documents for full attention (encoders, cross-attention): every query of a batch row sees all keys that are not
    padding, regardless of its position."""
    edges = padding[:, 1:] != padding[:, :-1]
    if not compiling:
        _check_padding(padding, edges)
    begins = torch.cat((torch.ones_like(edges[:, :1]), edges), 1)
    first = padding.long().argmax(1, keepdim=True)
    keys = torch.arange(padding.shape[1], device=padding.device)
    return _cu_seqlens(begins, (keys > first).long() * q_length, q_length)
