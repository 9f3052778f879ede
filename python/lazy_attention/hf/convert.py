"""make_lazy: converts softmax attention of a transformers model to Elastic-Softmax and a distance bias, in place."""

from __future__ import annotations

import types

import torch
from torch import nn
from transformers import PreTrainedModel

from ..per_head import CHILD
from .modeling import LazyPreTrainedModel
from .saving import read_lazy_names, save_pretrained


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
    tau: float = 0.0,
    offset: str = "per_visible",
    tau_trainable: bool = True,
    distance_bias_std: float = 1e-3,
    reset: bool = False,
) -> PreTrainedModel:
    """Replaces softmax attention by Lazy Attention (arXiv 2601.00919, equations 4 and 5) in every layer, in place.

    Each attention layer gets the fp32 parameters ``lazy_tau`` (heads) and, unless ``distance_bias_window`` is 0,
    ``lazy_distance_bias`` (heads, W), drawn from N(0, distance_bias_std^2); the configuration gets
    ``lazy_normalizer``, ``lazy_offset`` and ``lazy_distance_bias_window``; the model computes through
    ``attn_implementation="lazy"`` and refuses every other. Rotary positions stay as they are.

    tau = 0, the default, and a bias of zeros leave the function of a pretrained model unchanged; docs/python.md shows
    how to anneal tau to -1, the paper's initial value, during training. Pass ``tau=-1.0`` to train from random weights.

    A second call with the same arguments changes nothing, so that trained parameters are never overwritten
    silently. A call with other arguments raises ValueError. ``reset=True`` draws new initial values with the arguments
    given, in both cases.

    ``save_pretrained`` writes a LazyForCausalLM folder (Llama and Mistral without biases; ValueError for other
    models), which ``AutoModelForCausalLM.from_pretrained`` reads after ``import lazy_attention.hf``.

    Returns the model. Raises ValueError when it has no attention layer that this function knows, layers with sinks, or
    layers that compute Lazy Attention already (LazyForCausalLM).
    """
    if isinstance(model, LazyPreTrainedModel):
        raise ValueError(
            f"make_lazy: expected a model with softmax attention, received {type(model).__name__}, whose layers "
            "compute Lazy Attention already"
        )
    layers = attention_modules(model)
    if not layers:
        raise ValueError(
            f"make_lazy: expected a model with attention layers that go through AttentionInterface, "
            f"received {type(model).__name__}"
        )
    if any(getattr(layer, "sinks", None) is not None for layer in layers):
        raise ValueError("make_lazy: expected layers without sinks: Elastic-Softmax takes their place")
    if (getattr(model, "_tp_size", None) or 1) > 1:
        raise ValueError(
            "make_lazy: expected a model without tensor parallelism, which does not shard tau and the bias"
        )
    arguments = dict(
        distance_bias_window=distance_bias_window,
        tau=float(tau),
        offset=offset,
        tau_trainable=tau_trainable,
        distance_bias_std=float(distance_bias_std),
    )
    before = getattr(model, "lazy_arguments", None)
    if before is not None and not reset:
        changed = [
            f"{name} {before[name]!r} to {value!r}" for name, value in arguments.items() if before[name] != value
        ]
        if changed:
            raise ValueError(
                f"make_lazy: the model is converted already, and this call would change {', '.join(changed)}: pass "
                "reset=True to discard its tau and distance bias"
            )
        return model
    if any(CHILD in layer._modules for layer in layers):
        raise ValueError("make_lazy: expected a model without FSDP2 units: call make_lazy before shard_heads")
    model.set_attn_implementation("lazy")
    for layer in layers:
        heads = layer.q_proj.out_features // layer.head_dim
        device = layer.q_proj.weight.device
        if before is None:
            layer.register_forward_pre_hook(_refuse_others)
        layer.lazy_tau = nn.Parameter(
            torch.full((heads,), float(tau), device=device, dtype=torch.float32), requires_grad=tau_trainable
        )
        layer._parameters.pop("lazy_distance_bias", None)
        if distance_bias_window:
            bias = torch.empty(heads, distance_bias_window, device=device, dtype=torch.float32)
            layer.lazy_distance_bias = nn.Parameter(bias.normal_(0.0, distance_bias_std))
    model.config.lazy_normalizer = "elastic"
    model.config.lazy_offset = offset
    model.config.lazy_distance_bias_window = distance_bias_window
    model.lazy_arguments = arguments
    if before is None:
        model.save_pretrained = types.MethodType(save_pretrained, model)
        model.register_load_state_dict_pre_hook(read_lazy_names)
    return model
