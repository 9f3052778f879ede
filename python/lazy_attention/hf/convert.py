"""make_lazy: gives a transformers model Elastic-Softmax and a distance bias, in place."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The model's attention layers: those with a ``layer_idx``, projections of q, k, v, and a head count to find."""
    return [m for m in model.modules() if hasattr(m, "layer_idx") and hasattr(m, "q_proj") and hasattr(m, "head_dim")]


def _refuse_others(layer: nn.Module, _) -> None:
    """A layer's forward pre-hook: any other attention function would leave out its tau and bias, silently."""
    found = layer.config._attn_implementation
    if found != "lazy":
        raise ValueError(
            f'make_lazy: expected attn_implementation="lazy", which computes tau and the distance bias of this model, '
            f'found "{found}"'
        )


def make_lazy(
    model: PreTrainedModel,
    distance_bias_window: int = 512,
    tau: float = -1.0,
    offset: str = "per_visible",
    tau_trainable: bool = True,
    distance_bias_std: float = 1e-3,
) -> PreTrainedModel:
    """Replaces softmax attention by Lazy Attention (arXiv 2601.00919, equations 4 and 5) in every layer, in place.

    Each attention layer gets the fp32 parameters ``lazy_tau`` (heads) and, unless ``distance_bias_window`` is 0,
    ``lazy_distance_bias`` (heads, W), drawn from N(0, distance_bias_std^2); the configuration gets
    ``lazy_normalizer``, ``lazy_offset`` and ``lazy_distance_bias_window``; the model computes through
    ``attn_implementation="lazy"`` and refuses every other. Rotary positions stay as they are. tau = 0 and a bias of
    zeros leave the model's function as it was.

    ``save_pretrained`` stores the parameters; to load them, build the model, call ``make_lazy`` with the same window,
    then ``load_state_dict``.

    Returns the model. ValueError when it has no attention layer that this function knows, or layers with sinks.
    """
    layers = attention_modules(model)
    if not layers:
        raise ValueError(
            f"make_lazy: expected a model with attention layers that go through AttentionInterface, "
            f"received {type(model).__name__}"
        )
    if any(getattr(layer, "sinks", None) is not None for layer in layers):
        raise ValueError("make_lazy: expected layers without sinks: Elastic-Softmax takes their place")
    model.set_attn_implementation("lazy")
    for layer in layers:
        heads = layer.q_proj.out_features // layer.head_dim
        device = layer.q_proj.weight.device
        if not hasattr(layer, "lazy_tau"):  # once a layer
            layer.register_forward_pre_hook(_refuse_others)
        layer.lazy_tau = nn.Parameter(torch.full((heads,), float(tau), device=device), requires_grad=tau_trainable)
        if distance_bias_window:
            bias = torch.empty(heads, distance_bias_window, device=device).normal_(0.0, distance_bias_std)
            layer.lazy_distance_bias = nn.Parameter(bias)
    model.config.lazy_normalizer = "elastic"
    model.config.lazy_offset = offset
    model.config.lazy_distance_bias_window = distance_bias_window
    return model
