"""attn_implementation="lazy": calls the operator through transformers' AttentionInterface."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..decoding import attention_or_decode
from ..operator import TAKES_SINK, TAKES_TAU, attention
from ..per_head import gathered, warn_of_rounding
from .masks import is_documents

LAZY_PARAMETERS = ("lazy_tau", "lazy_distance_bias")  # names of make_lazy's parameters in an attention layer
# Tells users of output_attentions and of attn_implementation="eager" how to obtain the attention weights.
READ_WEIGHTS = 'lazy_attention.probe(model, ids, save=["layers.*.attention.weights"]) returns the attention weights'


def _expect(ok: bool, message: str) -> None:
    if not ok:
        raise ValueError(f'attn_implementation="lazy": expected {message}')


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **arguments) -> Tensor:
    """Attention with a mask returned by ``lazy_mask``. query is (batch, length, heads, head_dim); key and value are
    (batch, key length, kv heads, head_dim). Returns a tensor of query's shape."""
    if mask is None:
        return attention_or_decode(query, key, value, **arguments)
    _expect(
        is_documents(mask),
        "a mask made by transformers' create_*_mask for this implementation (causal, sliding "
        f"window, padding, packed documents), received a {mask.dtype} mask of shape {tuple(mask.shape)}; "
        'use "sdpa" or "eager" for custom masks',
    )
    batch = query.shape[0]
    cu_q, cu_k = mask[0, 0, 0], mask[0, 0, 1]
    out = attention(
        query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, **arguments
    )
    return out.unflatten(0, (batch, -1))


def _setting(module: nn.Module, name: str, default=None, parameter: Tensor | None = None):
    """Returns `parameter` if it is given. Otherwise looks up `name` in this layer (``module.lazy_*``), then in the
    model configuration (``config.lazy_*``), and returns `default` if neither has it."""
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

    The default normalizer is "softmax", or "softmax_sink" for models with sinks (``s_aux`` or ``module.sinks``, as in
    gpt-oss). The following attributes of the layer (``module.lazy_*``) or of the model configuration
    (``config.lazy_*``) override the defaults:

    - ``lazy_normalizer``: "softmax", "elastic", "sigmoid", "sparsemax" or "entmax15"; "softmax_sink" or "elastic_sink"
      for a layer with sinks;
    - ``lazy_offset``: "per_visible" or "constant";
    - ``lazy_tau``: a parameter (heads) of the layer, or a number in the configuration;
    - ``lazy_distance_bias``: (heads, W), a parameter of the layer.

    ``lazy_attention.hf.make_lazy`` adds these attributes to a model.

    Args: the arguments of every AttentionInterface function: query (batch, heads, length, head_dim), key and value
    (batch, kv heads, key length, head_dim). With a KV cache, the key length exceeds the query length. Returns the
    output (batch, length, heads, head_dim) and None. Raises ValueError for unsupported features: attention dropout,
    returning the attention weights, masks that ``lazy_mask`` did not create, and paged caches.
    """
    _expect(not dropout, f"attention dropout 0, received {dropout}")
    for name in ("position_bias", "cache", "head_mask"):
        _expect(kwargs.get(name) is None, f"no {name}, received one")
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
        not kwargs.get("output_attentions"),
        "output_attentions=False: the kernel does not store the attention weights; "
        + (READ_WEIGHTS if made_lazy else 'set_attn_implementation("eager") computes them'),
    )
    _expect(
        not made_lazy or own_tau is not None,
        "layers with tau, as in the configuration, received a layer without tau: build the model by AutoModel's "
        "from_config or from_pretrained, or call make_lazy on the model and load its state_dict",
    )
    normalizer = _setting(module, "lazy_normalizer", "softmax" if s_aux is None else "softmax_sink")
    _expect(
        (s_aux is not None) == (normalizer in TAKES_SINK),
        f'sinks if and only if the normalizer is "softmax_sink" or "elastic_sink", received "{normalizer}" for a layer '
        f"{'with' if s_aux is not None else 'without'} sinks",
    )
    tau = None
    if normalizer in TAKES_TAU:
        warn_of_rounding(own_tau)
        tau = _setting(module, "lazy_tau", -1.0, own_tau)
        if not isinstance(tau, Tensor):
            tau = torch.full((query.shape[1],), float(tau), device=query.device)
    # query, key and value can have different types: in bf16 models with fp32 rotary tables, and in fp32 models under
    # autocast.
    types = {query.dtype, key.dtype, value.dtype}
    if len(types) > 1 and not torch.is_autocast_enabled(query.device.type):
        query, key = query.to(value.dtype), key.to(value.dtype)
    cu_q, cu_k = kwargs.get("cu_seq_lens_q"), kwargs.get("cu_seq_lens_k")
    if attention_mask is None and cu_q is not None:  # packed documents of DataCollatorWithFlattening
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
