"""The fused operators of a decoder, each with the plain PyTorch expression for types or devices that they do not serve."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _library  # noqa: F401  registers torch.ops.lazy


def _served(*tensors: Tensor) -> bool:
    x = tensors[0]
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16) and all(
        t.dtype == x.dtype for t in tensors)


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


def rope(x: Tensor, base: float, offset: int = 0, positions: Tensor | None = None) -> Tensor:
    """Rotary position embedding: dimension d is paired with d + head_dim / 2, the pair turns by
    ``position * base ** (-2 d / head_dim)`` radians. Angles in fp64, cosines and sines rounded to fp32.

    Args:
        x: (batch, length, heads, head_dim), head_dim even.
        base: the wavelengths' base, theta.
        offset: position of the first token, at least 0. Not used with ``positions``.
        positions: (length) or (batch, length), integers: a position a token. Default ``offset + 0, 1, 2, ...``.

    Returns a tensor of x's shape and type. Gradient for x.
    """
    if positions is None:
        if _served(x):
            return torch.ops.lazy.rope(x, base, offset)
        positions = torch.arange(offset, offset + x.shape[1], device=x.device)
    return rotate(x, *rope_table(positions, x.shape[-1], base))


def rope_table(positions: Tensor, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines, fp32 (..., 1, head_dim / 2), of positions (...): for :func:`rotate`."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions.device) / head_dim
    angles = positions.to(torch.float64)[..., None, None] * base ** -exponents
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates x (batch, length, heads, head_dim) by the angles of :func:`rope_table`, at least in fp32."""
    wide = x if x.dtype == torch.float64 else x.float()
    a, b = wide.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def linear_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor, ignore_index: int = -100) -> Tensor:
    """Mean cross-entropy in nats of ``softmax(hidden @ weight.T)`` against labels; the logits never exist at once.

    Args:
        hidden: (tokens, dim), float32 or bfloat16.
        weight: (vocabulary, dim), of hidden's type; under autocast both are cast to autocast's.
        labels: (tokens), int64; ``ignore_index`` is not counted.

    Returns a float32 scalar, NaN when no label counts. Gradients for hidden and weight.
    """
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    with torch.autocast(hidden.device.type, enabled=False):  # the operator's own products keep their types
        return torch.ops.lazy.linear_cross_entropy(hidden, weight, labels, ignore_index)[0]
