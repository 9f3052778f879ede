"""The fused operators of a decoder, with plain PyTorch as the fallback for unsupported types and devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _library  # noqa: F401  registers torch.ops.lazy


def _served(*tensors: Tensor) -> bool:
    x = tensors[0]
    return (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.bfloat16)
        and all(t.dtype == x.dtype for t in tensors)
    )


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, sums in fp32.

    x: (..., dim); weight: (dim), in fp32 or in x's type. Returns a tensor of x's shape and type. Differentiable with
    respect to x and weight.
    """
    if _served(x) and weight.dtype in (torch.float32, x.dtype):
        return torch.ops.lazy.rms_norm(x, weight, eps)
    wide = x.to(weight.dtype) if weight.dtype == torch.float64 else x.float() if x.dtype != torch.float64 else x
    return F.rms_norm(wide, (x.shape[-1],), weight.to(wide.dtype), eps).to(x.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up``. Both tensors are (..., dim) and have the same type. Differentiable with respect to both."""
    return torch.ops.lazy.swiglu(gate, up) if _served(gate, up) else F.silu(gate) * up


def rope(
    x: Tensor,
    base: float = 10000.0,
    offset: int = 0,
    positions: Tensor | None = None,
    *,
    rotary_dim: int = -1,
    interleaved: bool = False,
    scaling: Literal["none", "linear", "llama3", "yarn", "longrope"] = "none",
    factor: float = 1.0,
    original_length: int = 0,
    **scaling_details: float | bool | Sequence[float],
) -> Tensor:
    """Rotary position embedding: rotates pair n of each head by ``position * base ** (-2 n / rotary_dim)`` radians.
    Angles are computed in fp64; their cosines and sines are rounded to fp32.

    Args:
        x: (batch, length, heads, head_dim), or packed (tokens, heads, head_dim).
        base: the base theta of the rotation frequencies, greater than 1.
        offset: position of the first token, at least 0. Cannot be combined with ``positions``.
        positions: (length) or (batch, length), non-negative integers: the position of each token. Default: offset,
            offset + 1, ...
        rotary_dim: number of rotated dimensions per head, an even number. The first dimensions of each head are
            rotated. -1 rotates all of them.
        interleaved: True rotates the pairs (2n, 2n + 1). False rotates the pairs (n, n + rotary_dim / 2), as in Llama,
            Qwen and gpt-oss.
        scaling: frequency scaling of long-context models, see docs/operator.md.
        factor: the scaling factor.
        original_length: context length before the scaling.
        scaling_details: further parameters of the scaling: low_frequency and high_frequency ("llama3"); beta_fast,
            beta_slow and truncate ("yarn"); attention_factor ("yarn" and "longrope"); pair_factors, the divisors of
            the frequencies ("longrope").

    Returns a tensor of x's shape and type. Differentiable with respect to x. Raises RuntimeError, ``lazy::rope:
    expected ..., received ...``, for invalid arguments.
    """
    options = dict(
        positions=positions,
        rotary_dim=rotary_dim,
        interleaved=interleaved,
        scaling=scaling,
        factor=factor,
        original_length=original_length,
        **scaling_details,
    )
    if _served(x):
        return torch.ops.lazy.rope(x, base, offset, **options)
    if x.dtype != torch.float64:
        return torch.ops.lazy.rope(x.float(), base, offset, **options).to(x.dtype)
    # The operator does not support float64. Apply it to unit vectors to obtain the fp32 cosines and sines, then rotate
    # in float64.
    dims = x.shape[-1] if rotary_dim == -1 else rotary_dim
    step, half = (2, 1) if interleaved else (1, dims // 2)
    first = torch.arange(dims // 2, device=x.device) * step
    unit = torch.zeros(x.shape[:-2] + (1, x.shape[-1]), device=x.device).index_fill(-1, first, 1.0)
    turned = torch.ops.lazy.rope(unit, base, offset, **options)
    cos, sin = turned.index_select(-1, first), turned.index_select(-1, first + half)
    a, b = x.index_select(-1, first), x.index_select(-1, first + half)
    return x.index_copy(-1, first, a * cos - b * sin).index_copy(-1, first + half, b * cos + a * sin)


def linear_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int = -100) -> Tensor:
    """Mean cross-entropy in nats of ``softmax(hidden @ weight.T)`` against labels; logits are computed in chunks.

    Args:
        hidden: (tokens, dim), float32 or bfloat16.
        weight: (vocabulary, dim), in hidden's type. Under autocast, hidden and weight are cast to the autocast type.
        labels: (tokens), int64. Tokens whose label is ``ignore_index`` are excluded from the mean.

    Returns a float32 scalar, or NaN if all tokens are excluded. Differentiable with respect to hidden and weight.
    """
    return torch.ops.lazy.linear_cross_entropy(hidden, weight, labels, ignore_index)[0]
