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

    x: (..., dim); weight: (dim), fp32 or x's type. Returns a tensor like x. Gradients for both.
    """
    if _served(x) and weight.dtype in (torch.float32, x.dtype):
        return torch.ops.lazy.rms_norm(x, weight, eps)
    wide = x.to(weight.dtype) if weight.dtype == torch.float64 else x.float() if x.dtype != torch.float64 else x
    return F.rms_norm(wide, (x.shape[-1],), weight.to(wide.dtype), eps).to(x.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up``. Both (..., dim), same shape and type. Gradients for both."""
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
    """Rotary position embedding: pair n of a head turns by ``position * base ** (-2 n / rotary_dim)`` radians.
    Angles in fp64, cosines and sines rounded to fp32.

    Args:
        x: (batch, length, heads, head_dim), or packed (tokens, heads, head_dim).
        base: theta, above 1.
        offset: position of the first token, at least 0. Not with ``positions``.
        positions: (length) or (batch, length), integers from 0: a position a token. Default offset, offset + 1, ...
        rotary_dim: the dimensions that turn, even, the first ones of each head; -1: all.
        interleaved: pairs (2n, 2n + 1); otherwise (n, n + rotary_dim / 2), as Llama, Qwen and gpt-oss.
        scaling: of long-context models, see docs/operator.md.
        factor: of the scaling.
        original_length: of the scaling.
        scaling_details: low_frequency and high_frequency; beta_fast, beta_slow, truncate and attention_factor;
            pair_factors, the divisors of the frequencies for "longrope".

    Returns a tensor of x's shape and type. Gradient for x. RuntimeError, ``lazy::rope: expected ..., received ...``.
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
    # float64 products of the fp32 cosines and sines, which the operator returns for unit vectors.
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
        weight: (vocabulary, dim), of hidden's type; under autocast both are cast to autocast's.
        labels: (tokens), int64; ``ignore_index`` is not counted.

    Returns a float32 scalar, NaN when no label counts. Gradients for hidden and weight.
    """
    return torch.ops.lazy.linear_cross_entropy(hidden, weight, labels, ignore_index)[0]
