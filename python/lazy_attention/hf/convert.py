"""make_lazy: converts softmax attention of a transformers model to Elastic-Softmax and a distance bias, in place."""

from __future__ import annotations

import copy
import inspect

from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from ..arguments import expect_types
from ..per_head import CHILD
from .families import (
    FAMILIES,
    LazyFamilyModel,
    attention_layers,
    check_lazy_keys,
    lazy_config_class,
    lazy_model_class,
    lazy_normalizer,
)
from .pretrained import LazyPreTrained, expect_no_weights

# Key of the model configuration -> name of the argument of make_lazy that sets it, where the two names differ.
_ARGUMENT_OF = {
    "offset_init": "tau",
    "offset_trainable": "tau_trainable",
    "distance_bias_init_std": "distance_bias_std",
}


def make_lazy(
    model: PreTrainedModel,
    distance_bias_window: int = 512,
    tau: float = 0.0,
    offset: str = "per_visible",
    tau_trainable: bool = True,
    distance_bias_std: float = 0.0,
    reset: bool = False,
) -> PreTrainedModel:
    """Replaces softmax attention by Lazy Attention (arXiv 2601.00919, equations 4 and 5) in every layer, in place.

    Each attention layer gets the fp32 parameters ``lazy_tau`` (heads) and, unless ``distance_bias_window`` is 0,
    ``lazy_distance_bias`` (heads, W), drawn from N(0, distance_bias_std^2). The classes of the model and of its
    configuration are replaced by the corresponding Lazy Attention classes (LlamaForCausalLM becomes
    LazyLlamaForCausalLM), which only support ``attn_implementation="lazy"``. Rotary positions, sliding windows,
    soft-capping, query/key norms and learned sinks are unchanged. The weights of a model with sinks are
    ``max(p + tau / i, 0)``, with ``p`` from the softmax over the keys and the sink.

    With the defaults (tau = 0 and a zero bias), a pretrained model computes the same outputs as before.
    docs/guides/python.md shows how to anneal tau to -1, the paper's initial value, during training. To train from
    random weights, pass ``tau=-1.0`` and the paper's ``distance_bias_std=1e-3``. With ``tau_trainable=False``, tau is a
    buffer with the same name instead of a parameter.

    A second call with the same arguments changes nothing, so that trained parameters are never overwritten
    silently. A second call with different arguments raises ValueError. In both cases, ``reset=True`` replaces the
    parameters by new initial values for the given arguments.

    ``save_pretrained`` writes a folder that the program `lazy` can read. ``AutoModelForCausalLM.from_pretrained`` can
    read it after ``import lazy_attention.hf``.

    Returns the model. Raises ValueError for families that are not in `lazy_attention.hf.FAMILIES`, for models whose
    layers already compute Lazy Attention (LazyForCausalLM), and for models that are already sharded.
    """
    converted = isinstance(model, LazyFamilyModel)
    if isinstance(model, LazyPreTrained) and not converted:
        raise ValueError(
            f"make_lazy: expected a model with softmax attention, received {type(model).__name__}, whose layers "
            "compute Lazy Attention already"
        )
    family = getattr(getattr(model, "config", None), "model_type", None)
    if not converted and not (isinstance(model, PreTrainedModel) and family in FAMILIES):
        found = type(model).__name__ + (f' (model_type "{family}")' if family else "")
        if family in FAMILIES:
            raise ValueError(
                f"make_lazy: expected a transformers model, received {found}: convert the model before it is wrapped "
                "(by PEFT, torch.compile, DistributedDataParallel, ...)"
            )
        raise ValueError(
            f"make_lazy: expected a transformers model of a family that can be converted ({', '.join(FAMILIES)}), "
            f"received {found}{_reason(model)}"
        )
    kinds = {"tau": "float", "distance_bias_std": "float", "tau_trainable": "bool", "reset": "bool"}
    expect_types("make_lazy", kinds, locals())
    normalizer = model.config.normalizer if converted else lazy_normalizer(family)
    settings = dict(
        normalizer=normalizer,
        offset=offset,
        offset_trainable=bool(tau_trainable),
        offset_init=float(tau),
        distance_bias_window=distance_bias_window,
        distance_bias_init_std=float(distance_bias_std),
    )
    check_lazy_keys(settings, normalizer, _ARGUMENT_OF)
    if converted and not reset:
        changed = [_change(key, getattr(model.config, key), value) for key, value in settings.items()]
        if changed := [change for change in changed if change]:
            raise ValueError(
                f"make_lazy: the model is converted already, and this call would change {', '.join(changed)}: pass "
                "reset=True to discard its tau and distance bias"
            )
        return model
    if (getattr(model, "_tp_size", None) or 1) > 1:
        raise ValueError(
            "make_lazy: expected a model without tensor parallelism, which does not shard tau and the bias"
        )
    if any(CHILD in layer._modules for layer in attention_layers(model)) or any(
        isinstance(parameter, DTensor) for parameter in model.parameters()
    ):
        raise ValueError(
            "make_lazy: expected a model without FSDP2 units: call make_lazy before shard_heads and fully_shard"
        )
    expect_no_weights("make_lazy", model.config.output_attentions)
    old = model.config
    config = copy.deepcopy(old)  # do not modify `old`: other models may share it
    if not converted:
        config.__class__ = lazy_config_class(type(old))
    for name, value in settings.items():
        setattr(config, name, value)
    config._attn_implementation = "lazy"
    for module in model.modules():
        if getattr(module, "config", None) is old:
            module.config = config
    if not converted:
        model.__class__ = lazy_model_class(type(model))
        # The folder or repository that the model was loaded from contains the unconverted model.
        model.name_or_path = config.name_or_path = ""
    model.add_lazy_parameters()
    return model


def _change(key: str, before, value) -> str:
    """Returns a text that describes how a second call of make_lazy would change a configuration key. The text is empty
    if the value would not change."""
    if before == value:
        return ""
    argument = _ARGUMENT_OF.get(key, key)
    default = inspect.signature(make_lazy).parameters.get(argument)
    is_default = default is not None and default.default == value
    return f"{argument} {before!r} to {value!r}" + (" (the default)" if is_default else "")


def _reason(model) -> str:
    """Returns the reason why a model of this family cannot be converted, if the reason is visible in the model."""
    if not isinstance(model, PreTrainedModel):
        return ""
    if getattr(model.config, "rope_parameters", None) is None:
        return ", which has no rotary positions (RoPE); conversion to Lazy Attention requires RoPE"
    return ""
