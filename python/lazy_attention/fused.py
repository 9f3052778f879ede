"""The fused operators of a decoder, with plain PyTorch as the fallback for unsupported types and devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .arguments import check_types


def _served(*tensors: Tensor) -> bool:
    x = tensors[0]
    return (
        x.device.type == "cpu"
        and x.dtype in (torch.float32, torch.bfloat16)
        and all(t.dtype == x.dtype for t in tensors)
    )


def _expect(ok: bool, operator: str, expected: str, *received) -> None:
    if not ok:
        raise RuntimeError(f"lazy::{operator}: expected {expected}, received {' and '.join(map(str, received))}")


def _expect_real(operator: str, name: str, t: Tensor) -> None:
    _expect(t.is_floating_point(), operator, f"{name} of a floating-point type", t.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Returns ``x / sqrt(mean(x^2) + eps) * weight``, with the mean over the last dimension. Sums are in fp32.

    x: (..., dim); weight: (dim), in fp32 or in x's type. Returns a tensor of x's shape and type. Differentiable with
    respect to x and weight. Raises RuntimeError, ``lazy::rms_norm: expected ..., received ...``, for wrong shapes,
    types and devices, and TypeError for arguments that are not tensors.
    """
    check_types("rms_norm", x=x, weight=weight, eps=eps)
    _expect(x.dim() > 0, "rms_norm", "x of shape (..., dim)", list(x.shape))
    _expect(weight.shape == x.shape[-1:], "rms_norm", f"weight of shape ({x.shape[-1]})", list(weight.shape))
    _expect(weight.device == x.device, "rms_norm", f"weight on {x.device} like x", weight.device)
    _expect_real("rms_norm", "x", x)
    _expect_real("rms_norm", "weight", weight)
    if _served(x) and weight.dtype in (torch.float32, x.dtype):
        return torch.ops.lazy.rms_norm(x, weight, eps)
    wide = x.to(weight.dtype) if weight.dtype == torch.float64 else x.float() if x.dtype != torch.float64 else x
    return F.rms_norm(wide, (x.shape[-1],), weight.to(wide.dtype), eps).to(x.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Returns ``silu(gate) * up``. Both tensors have the same shape (..., dim) and the same type. The result is
    differentiable with respect to both. Raises RuntimeError, ``lazy::swiglu: expected ..., received ...``, for wrong
    shapes, types and devices, and TypeError for arguments that are not tensors.
    """
    check_types("swiglu", gate=gate, up=up)
    _expect(up.shape == gate.shape, "swiglu", f"up with gate's shape {list(gate.shape)}", list(up.shape))
    _expect(up.dtype == gate.dtype, "swiglu", f"up with gate's type {gate.dtype}", up.dtype)
    _expect(up.device == gate.device, "swiglu", f"up on {gate.device} like gate", up.device)
    _expect_real("swiglu", "gate", gate)
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
        scaling: frequency scaling of long-context models, see docs/reference/operator.md.
        factor: the scaling factor.
        original_length: context length before the scaling.
        scaling_details: further parameters of the scaling: low_frequency and high_frequency ("llama3"); beta_fast,
            beta_slow and truncate ("yarn"); attention_factor ("yarn" and "longrope"); pair_factors, the divisors of
            the frequencies ("longrope").

    Returns a tensor of x's shape and type. Differentiable with respect to x. Raises RuntimeError, ``lazy::rope:
    expected ..., received ...``, for invalid arguments, and TypeError for wrong types and unknown arguments.
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
    check_types("rope", x=x, base=base, offset=offset, **options)
    _expect_real("rope", "x", x)
    _expect(rotary_dim >= -1, "rope", "rotary_dim of -1 (all dimensions) or at least 2", rotary_dim)
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
    """Returns the mean cross-entropy in nats of ``softmax(hidden @ weight.T)`` with respect to `labels`. The logits are
    computed in chunks, so that the full (tokens, vocabulary) matrix is never stored.

    Args:
        hidden: (..., dim), for example (tokens, dim) or (batch, length, dim); float32 or bfloat16.
        weight: (vocabulary, dim), in hidden's type. Under autocast, hidden and weight are cast to the autocast type.
        labels: (...), int64: hidden's shape without the last dimension. Position t has the label of hidden[..., t, :];
            the function does not shift labels. Tokens whose label is ``ignore_index`` are excluded from the mean.

    Returns a float32 scalar, or NaN if all tokens are excluded. Differentiable with respect to hidden and weight.
    Raises RuntimeError, ``lazy::linear_cross_entropy: expected ..., received ...``, for wrong shapes, types and labels,
    and TypeError for arguments that are not tensors.
    """
    name = "linear_cross_entropy"
    check_types(name, hidden=hidden, weight=weight, labels=labels, ignore_index=ignore_index)
    fits = hidden.dim() > 1 and weight.dim() == 2 and weight.shape[1] == hidden.shape[-1]
    _expect(fits, name, "hidden (..., dim) and weight (vocabulary, dim)", list(hidden.shape), list(weight.shape))
    tokens = hidden.shape[:-1]
    _expect(labels.shape == tokens, name, f"labels with hidden's leading shape {list(tokens)}", list(labels.shape))
    _expect(labels.dtype == torch.int64, name, "labels of type int64", labels.dtype)
    hidden, labels = hidden.flatten(0, -2), labels.flatten()
    return torch.ops.lazy.linear_cross_entropy(hidden, weight, labels, ignore_index)[0]
