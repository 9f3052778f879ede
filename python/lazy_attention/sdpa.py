"""The operator's softmax kernels as an implementation of PyTorch's ``scaled_dot_product_attention`` on NVIDIA GPUs.

    import lazy_attention.sdpa                                       # registers the implementation "lazy"
    from torch.nn.attention import activate_flash_attention_impl, restore_flash_attention_impl
    activate_flash_attention_impl("lazy")

While "lazy" is active, PyTorch's flash-attention backend computes dense attention with our kernels, in the forward and
in the backward pass, also in compiled models. PyTorch selects the backend as before: only calls without a mask and with
bfloat16 or float16 tensors reach it. ``torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION)`` forces it.
``restore_flash_attention_impl()`` restores PyTorch's kernels. Nested tensors and ``varlen_attn`` call other operators
and keep PyTorch's kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention import register_flash_attention_impl

from . import _library  # noqa: F401  registers torch.ops.lazy


class Registration:
    """The kernels that replace PyTorch's, until `remove` is called."""

    def __init__(self, device: str = "CUDA"):
        self._library = torch.library.Library("aten", "IMPL")
        self._library.impl("_scaled_dot_product_flash_attention", forward, device)
        self._library.impl("_scaled_dot_product_flash_attention_backward", backward, device)

    def remove(self) -> None:
        self._library = None  # destroying a Library removes its registrations


def _options(scale: float | None, causal: bool) -> tuple:
    """Returns the arguments of attention_forward and attention_backward from normalizer to cu_seqlens_k."""
    return "softmax", "per_visible", None, scale, None, causal, -1, None, None


def _check(q: Tensor, k: Tensor, dropout_p: float, causal: bool, debug_mask: bool = False) -> None:
    for supported, expected, found in (
        (dropout_p == 0, "dropout_p to be 0", dropout_p),
        (not debug_mask, "return_debug_mask to be False", debug_mask),
        # PyTorch aligns is_causal to the top left, the operator to the bottom right.
        (not causal or q.shape[2] == k.shape[2], "equal lengths with is_causal", f"{q.shape[2]} and {k.shape[2]}"),
    ):
        if not supported:
            raise RuntimeError(f"lazy_attention.sdpa: expected {expected}, found {found}")


def _like(result: Tensor, model: Tensor) -> Tensor:
    """Transposes `result` to (batch, heads, length, head_dim), with the strides of `model`. Compiled programs rely on
    these strides."""
    result = result.transpose(1, 2)
    expected = torch.empty_like(model, device="meta").stride()
    return result if result.stride() == expected else torch.empty_like(model).copy_(result)


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
):
    """Implements aten::_scaled_dot_product_flash_attention. query: (batch, heads, length, head_dim); key and value:
    (batch, kv heads, key length, head_dim)."""
    _check(query, key, dropout_p, is_causal, return_debug_mask)
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    out, lse, *_ = torch.ops.lazy.attention_forward(
        *(q, k, v, None, None, None, None), *_options(scale, is_causal), 0, torch.are_deterministic_algorithms_enabled()
    )
    seed, offset = (torch.zeros(shape, dtype=torch.uint64, device=query.device) for shape in ((2,), ()))  # no dropout
    return _like(out, query), lse, None, None, query.shape[2], key.shape[2], seed, offset, query.new_empty(0)


def backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
):
    """Implements aten::_scaled_dot_product_flash_attention_backward."""
    _check(query, key, dropout_p, is_causal)
    d_out, o, q, k, v = (t.transpose(1, 2) for t in (grad_out, out, query, key, value))
    gradients = torch.ops.lazy.attention_backward(
        *(d_out, o, logsumexp, q, k, v, None, None, None, None),
        *_options(scale, is_causal),
        torch.are_deterministic_algorithms_enabled(),
        [True] * 3 + [False] * 4,
    )
    return tuple(_like(gradient, t) for gradient, t in zip(gradients, (query, key, value)))


register_flash_attention_impl("lazy", register_fn=Registration)
