"""attn_implementation="lazy": the operator behind transformers' AttentionInterface."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..decoding import attention_or_decode
from ..operator import attention
from ..per_head import gathered, warn_of_rounding
from .masks import is_documents

LAZY_PARAMETERS = ("lazy_tau", "lazy_distance_bias")  # names of make_lazy's parameters in an attention layer


def _expect(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(f'attn_implementation="lazy": expected {message}')


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **arguments) -> Tensor:
    """query (batch, length, heads, head_dim), key and value alike; mask: what ``lazy_mask`` returns. Out like query."""
    if mask is None:
        return attention_or_decode(query, key, value, **arguments)
    _expect(
        is_documents(mask),
        "a mask made by transformers' create_*_mask for this implementation (causal, sliding "
        f"window, padding, packed documents), received a {mask.dtype} mask of shape {tuple(mask.shape)}; "
        'use "sdpa" or "eager" for masks of your own',
    )
    batch = query.shape[0]
    cu_q, cu_k = mask[0, 0, 0], mask[0, 0, 1]
    out = attention(
        query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, **arguments
    )
    return out.unflatten(0, (batch, -1))


def _setting(module: nn.Module, name: str, default=None, parameter: Tensor | None = None):
    """`parameter` or ``module.lazy_*`` (of this layer), else ``config.lazy_*`` (a constant of the model)."""
    found = getattr(module, name, None) if parameter is None else parameter
    if found is None:
        found = getattr(getattr(module, "config", None), name, None)
    return default if found is None else found


def lazy_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """Attention of a transformers model through torch.ops.lazy.attention, without an n x n matrix.

    Softmax by default; with sinks (``s_aux`` or ``module.sinks``, gpt-oss) "softmax_sink". Otherwise each layer's
    ``module.lazy_*`` or the model's ``config.lazy_*`` say:

    - ``lazy_normalizer``: "softmax", "elastic", "sigmoid", "sparsemax" or "entmax15";
    - ``lazy_offset``: "per_visible" or "constant";
    - ``lazy_tau``: (heads), a parameter of the layer; in the configuration a number;
    - ``lazy_distance_bias``: (heads, W), a parameter of the layer.

    ``lazy_attention.hf.make_lazy`` adds them to a model.

    Args: as every function of AttentionInterface: query (batch, heads, length, head_dim), key and value (batch, kv
    heads, key length, head_dim), a key longer than the query being a KV cache. Returns (batch, length, heads,
    head_dim) and None. ValueError for what the operator does not do: attention dropout, returning the weights, a mask
    of another kind, paged caches.
    """
    _expect(not dropout, f"attention dropout 0, received {dropout}")
    for name in ("position_bias", "cache", "head_mask"):
        _expect(kwargs.get(name) is None, f"no {name}, received one")
    _expect(
        not kwargs.get("output_attentions"), 'output_attentions=False: the weights never exist; use "eager" to see them'
    )
    if s_aux is None:
        s_aux = getattr(module, "sinks", None)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if sliding_window is None:
        sliding_window = getattr(module, "sliding_window", None)
    exact = query.dtype == torch.float64

    def wide(t: Tensor | None) -> Tensor | None:
        return None if t is None else t.to(torch.float64 if exact else torch.float32)

    own_tau, distance_bias = gathered(module, LAZY_PARAMETERS)
    made_lazy = hasattr(getattr(module, "config", None), "distance_bias_window")
    _expect(
        not made_lazy or own_tau is not None,
        "layers with tau, as the configuration says, received one without: build the model by AutoModel's from_config "
        "or from_pretrained, or call make_lazy on the model and load its state_dict",
    )
    normalizer = _setting(module, "lazy_normalizer", "softmax" if s_aux is None else "softmax_sink")
    _expect(
        (s_aux is not None) == (normalizer == "softmax_sink"),
        f'sinks with normalizer "softmax_sink" and with no other, received "{normalizer}" for a layer '
        f"{'with' if s_aux is not None else 'without'} sinks",
    )
    tau = None
    if normalizer == "elastic":
        warn_of_rounding(own_tau)
        tau = _setting(module, "lazy_tau", -1.0, own_tau)
        if not isinstance(tau, Tensor):
            tau = torch.full((query.shape[1],), float(tau), device=query.device)
    # bf16 models under fp32 rotary tables, and fp32 models under autocast, hand over mixed types.
    types = {query.dtype, key.dtype, value.dtype}
    if len(types) > 1 and not torch.is_autocast_enabled(query.device.type):
        query, key = query.to(value.dtype), key.to(value.dtype)
    cu_q, cu_k = kwargs.get("cu_seq_lens_q"), kwargs.get("cu_seq_lens_k")
    if attention_mask is None and cu_q is not None:  # DataCollatorWithFlattening
        attention_mask = torch.stack((cu_q, cu_q if cu_k is None else cu_k)).to(torch.int32)[None, None]
    out = attend(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attention_mask,
        distance_bias=wide(distance_bias),
        tau=wide(tau),
        sink=wide(s_aux),
        normalizer=normalizer,
        offset=_setting(module, "lazy_offset", "per_visible"),
        scale=scaling,
        softcap=softcap,
        causal=bool(is_causal),
        window=-1 if sliding_window is None else sliding_window,
    )
    return out, None
