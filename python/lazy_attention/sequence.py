"""Context parallelism: the tokens of a sequence are distributed over the ranks of a process group.

A layout divides the sequence into equal chunks and assigns them to the ranks. Keys and values are gathered from all
ranks. A chunk of queries that ends at position e is computed with the keys 0, ..., e - 1: the causal mask of the
operator is aligned to the bottom right, so distances and visible counts equal the values in the whole sequence.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from .arguments import check_types
from .operator import AttentionOutput, attention

Layout = Literal["head-tail", "contiguous"]

# Layout -> function (rank, number of ranks) that returns the indices of the rank's chunks, in the rank's order.
_LAYOUTS = {
    "head-tail": lambda rank, ranks: (rank, 2 * ranks - 1 - rank),
    "contiguous": lambda rank, ranks: (rank,),
}


def _process_group(where: str, group) -> dist.ProcessGroup:
    """Returns the process group of `group`: a ProcessGroup, a one-dimensional DeviceMesh, or None for all ranks."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            f"lazy_attention.{where}: expected an initialized process group, found none: start the program with "
            "torchrun and call torch.distributed.init_process_group first"
        )
    if group is None:
        return dist.group.WORLD
    if isinstance(group, dist.DeviceMesh):
        if group.ndim != 1:
            raise ValueError(
                f"lazy_attention.{where}: expected a one-dimensional DeviceMesh as group, found the dimensions "
                f'{group.mesh_dim_names or group.ndim}: select one, such as mesh["cp"]'
            )
        return group.get_group()
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"lazy_attention.{where}: expected a group that contains this process, found another group")
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"lazy_attention.{where}: expected group to be a ProcessGroup, a one-dimensional DeviceMesh or None, found "
            f"{type(group).__name__}"
        )
    return group


def _chunks(where: str, group: dist.ProcessGroup, layout: str) -> list[tuple[int, ...]]:
    """Returns the indices of the chunks of every rank."""
    if layout not in _LAYOUTS:
        raise ValueError(
            f"lazy_attention.{where}: expected layout to be one of {', '.join(_LAYOUTS)}, found {layout!r}"
        )
    return [_LAYOUTS[layout](rank, group.size()) for rank in range(group.size())]


def _chunk_length(where: str, name: str, layout: str, length: int, chunks: int) -> int:
    if length == 0 or length % chunks:
        raise ValueError(
            f"lazy_attention.{where}: expected {name} to be a positive multiple of {chunks} with the layout "
            f'"{layout}", found {length}'
        )
    return length // chunks


def shard_sequence(x: Tensor, dim: int = 1, *, group=None, layout: Layout = "head-tail") -> Tensor:
    """Returns the part of a global tensor that belongs to this rank, without communication.

    Args:
        x: a tensor with the whole sequence in dimension ``dim``, for example token ids (batch, length), positions
            ``torch.arange(length)`` with ``dim=0``, or q of shape (batch, length, heads, head_dim).
        dim: the dimension of the sequence.
        group: ProcessGroup, one-dimensional DeviceMesh, or None for all ranks.
        layout: with R ranks, "head-tail" divides the sequence into 2 R chunks, and rank r has chunk r followed by
            chunk 2 R - 1 - r, so that every rank has the same number of causal query-key pairs. This is the
            load-balanced order of PyTorch and torchtitan. "contiguous" divides the sequence into R chunks, and rank r
            has chunk r.

    Raises ValueError if the length of the sequence is not a multiple of 2 R ("head-tail") or R ("contiguous").
    """
    where = "shard_sequence"
    group = _process_group(where, group)
    chunks = _chunks(where, group, layout)
    length = _chunk_length(where, "the length of the sequence", layout, x.shape[dim], sum(map(len, chunks)))
    pieces = x.split(length, dim)
    return torch.cat([pieces[chunk] for chunk in chunks[group.rank()]], dim)


def gather_sequence(x: Tensor, dim: int = 1, *, group=None, layout: Layout = "head-tail") -> Tensor:
    """Returns the tensor of the whole sequence, in the order of the sequence. Every rank passes its part and receives
    the same result. This is the inverse of `shard_sequence`; the arguments have the same meaning.

    Differentiable: the gradient of a part is the sum of its gradients on all ranks (a reduce-scatter in x's type). If
    all ranks compute the same loss from the result, divide the loss by the number of ranks.
    """
    return _gather("gather_sequence", x, dim, _process_group("gather_sequence", group), layout)


def _gather(where: str, x: Tensor, dim: int, group: dist.ProcessGroup, layout: str) -> Tensor:
    from torch.distributed._functional_collectives import all_gather_tensor_autograd

    chunks = _chunks(where, group, layout)
    dim %= x.dim()
    length = _chunk_length(where, "the local length", layout, x.shape[dim], len(chunks[0]))
    parts = all_gather_tensor_autograd(x.contiguous()[None], 0, group).unbind(0)  # one tensor of x's shape per rank
    pieces = {}
    for owned, part in zip(chunks, parts):
        pieces.update(zip(owned, part.split(length, dim)))
    return torch.cat([pieces[chunk] for chunk in range(len(pieces))], dim)


def context_parallel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    distance_bias: Tensor | None = None,
    tau: Tensor | None = None,
    sink: Tensor | None = None,
    *,
    group=None,
    layout: Layout = "head-tail",
    alibi_slopes: Tensor | None = None,
    causal: bool = True,
    window: int = -1,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    **options,
) -> Tensor | AttentionOutput:
    """Computes `attention` of a sequence that is distributed over the ranks of a process group.

    The result is exact: every rank receives its part of what `attention` computes from the whole sequence. K and V are
    gathered from all ranks (one all-gather each, and a reduce-scatter each in the backward pass), so K and V of the
    whole sequence must fit in the memory of each rank. Every rank of the group must call this function with the same
    shapes and options.

    Args:
        q: (batch, local length, heads, head_dim), this rank's part of the queries in the order of `shard_sequence`;
            packed by ``cu_seqlens_q``: (local tokens, heads, head_dim).
        k: (batch, local length, kv heads, head_dim), the keys of the same positions.
        v: (batch, local length, kv heads, value dim).
        distance_bias: (heads, W). This and the following parameters are equal on all ranks.
        tau: (heads).
        sink: (heads).
        group: ProcessGroup, one-dimensional DeviceMesh such as ``mesh["cp"]``, or None for all ranks.
        layout: "head-tail" or "contiguous", see `shard_sequence`.
        alibi_slopes: (heads).
        causal: without the causal mask, distance_bias, alibi_slopes and window are not supported.
        window: as in `attention`.
        cu_seqlens_q: (documents + 1), cumulative lengths of the packed documents of the whole sequence, from 0 to R
            times the number of local tokens. A document may span several ranks.
        cu_seqlens_k: equal to cu_seqlens_q.
        options: the other arguments of `attention`, such as normalizer, softcap, scale, return_lse and return_stats.

    Returns:
        The output of this rank's queries, (batch, local length, heads, value dim); or `AttentionOutput`, with lse and
        stats of this rank's queries.

    Differentiable like `attention`. The gradients of q, k and v are complete. The gradients of distance_bias, tau, sink
    and alibi_slopes are the contribution of this rank's queries: sum them over the group, as the gradients of all other
    parameters of a model under context parallelism.

    Raises:
        RuntimeError: no process group is initialized, or an error of `attention`.
        ValueError: an unknown layout, a local length that is odd with "head-tail", or an unsupported combination.
        TypeError: an argument of the wrong type.
    """
    where = "context_parallel"
    options |= dict(alibi_slopes=alibi_slopes, causal=causal, window=window)
    check_types(
        "attention",
        **dict(q=q, k=k, v=v, distance_bias=distance_bias, tau=tau, sink=sink),
        **dict(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k),
        **options,
    )
    group = _process_group(where, group)
    owned = _chunks(where, group, layout)[group.rank()]
    dim = 1 if cu_seqlens_q is None else 0
    axes = ("batch", "local length")[1 - dim :]
    if q.dim() != dim + 3 or not q.shape[: dim + 1] == k.shape[: dim + 1] == v.shape[: dim + 1]:
        raise ValueError(
            f"lazy_attention.{where}: expected q, k and v of shape ({', '.join(axes)}, heads, head_dim) with equal "
            f"{' and '.join(axes)}, found q {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)}"
        )
    if not causal and (distance_bias is not None or alibi_slopes is not None or window > 0):
        raise ValueError(
            f"lazy_attention.{where}: expected no distance_bias, alibi_slopes and window with causal=False, found at "
            "least one of them"
        )
    length = _chunk_length(where, "the local length", layout, q.shape[dim], len(owned))
    total = q.shape[dim] * group.size()
    if cu_seqlens_q is not None:
        _check_documents(cu_seqlens_q, cu_seqlens_k, total)
    k, v = (_gather(where, t, dim, group, layout) for t in (k, v))
    results = []
    for chunk, queries in zip(owned, q.split(length, dim)):
        start, end = chunk * length, (chunk + 1) * length
        seen = end if causal else total
        if cu_seqlens_q is not None:
            # A document that ends before the chunk has keys but no queries, a document after the chunk has neither.
            options["cu_seqlens_q"] = cu_seqlens_q.clamp(start, end) - start
            options["cu_seqlens_k"] = cu_seqlens_q.clamp(max=seen)
        keys, values = k.narrow(dim, 0, seen), v.narrow(dim, 0, seen)
        results.append(attention(queries, keys, values, distance_bias, tau, sink, **options))
    if isinstance(results[0], Tensor):
        return torch.cat(results, dim)
    out, lse, stats = zip(*results)
    return AttentionOutput(torch.cat(out, dim), torch.cat(lse, -1), torch.cat(stats, -1))


def _check_documents(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor | None, total: int) -> None:
    if cu_seqlens_k is None or (cu_seqlens_k is not cu_seqlens_q and not torch.equal(cu_seqlens_q, cu_seqlens_k)):
        raise ValueError("lazy_attention.context_parallel: expected cu_seqlens_k to be equal to cu_seqlens_q")
    if torch.compiler.is_compiling():  # the values are unknown
        return
    first, last = cu_seqlens_q[[0, -1]].tolist()
    if (first, last) != (0, total):
        raise ValueError(
            f"lazy_attention.context_parallel: expected cu_seqlens_q from 0 to {total}, the tokens of all ranks, found "
            f"{first} to {last}"
        )
