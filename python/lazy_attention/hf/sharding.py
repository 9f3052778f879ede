"""shard_heads: fp32 FSDP2 units for the per-head parameters. full_state_dict: a state dictionary without DTensors."""

from __future__ import annotations

import os

from torch import Tensor, distributed, float32, float64, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from ..layer import LazyAttention
from ..per_head import CHILD, PerHead, separate
from .attention import LAZY_PARAMETERS


def shard_heads(model: nn.Module, mesh=None, **options) -> nn.Module:
    """Wraps the per-head parameters of every attention layer (tau, distance bias, sinks) in an fp32 FSDP2 unit.

    Call it before ``fully_shard`` is applied to the model or its layers. Without it, FSDP2 either casts tau and the
    bias to ``MixedPrecisionPolicy.param_dtype``, or refuses a unit that mixes bf16 and fp32 parameters. The parameters
    of a layer move into the child module ``_checkpoint_wrapped_module``, whose name appears in ``named_parameters()``.
    The keys of ``state_dict`` do not change, so that checkpoints are the same with and without FSDP2:
    torch.distributed.checkpoint removes only this name from the names of parameters.

    Args:
        model: a `LazyForCausalLM`, a model converted by `make_lazy`, or any module with `LazyAttention` layers.
        mesh: the device mesh of ``fully_shard``. Default: all processes.
        options: further arguments of ``fully_shard``, such as ``offload_policy``. ``mp_policy`` (fp32) and
            ``reshard_after_forward`` (False, because the child module returns its parameters) are fixed.

    Returns the model. Raises ValueError if the model has no such parameters, or if they are not fp32, or if they are
    sharded already.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"shard_heads: expected model to be a torch.nn.Module, found {type(model).__name__}")
    if mesh is None and not distributed.is_initialized() and "RANK" not in os.environ:
        raise RuntimeError(
            "shard_heads: expected a process group: start the program by torchrun, or call "
            "torch.distributed.init_process_group first"
        )
    fixed = {"mp_policy", "reshard_after_forward"} & options.keys()
    if fixed:
        raise ValueError(f"shard_heads: expected no {' and no '.join(sorted(fixed))}: shard_heads sets the value")
    layers = [(name, layer, _names(layer)) for name, layer in model.named_modules()]
    for where, layer, names in layers:
        if isinstance(layer._modules.get(CHILD), PerHead):
            raise ValueError(
                f"shard_heads: expected one call, but an earlier call has sharded the per-head parameters of {where}"
            )
        for name in names:
            parameter = layer._parameters[name]
            if isinstance(parameter, DTensor):
                raise ValueError(
                    f"shard_heads: expected unsharded parameters, but {where}.{name} is a DTensor: call "
                    "shard_heads before fully_shard"
                )
            if parameter.dtype not in (float32, float64):
                raise ValueError(
                    f"shard_heads: expected fp32, {where}.{name} is {parameter.dtype}: convert the model's type when "
                    "it is loaded (from_pretrained(..., dtype=...)), which leaves these parameters in fp32"
                )
    made = [separate(layer, names) for _, layer, names in layers if names]
    if not made:
        raise ValueError(
            "shard_heads: expected a model with per-head parameters (LazyForCausalLM, or a model converted by "
            f"make_lazy), received {type(model).__name__}"
        )
    if mesh is not None:
        options["mesh"] = mesh
    for unit in made:
        fully_shard(unit, mp_policy=MixedPrecisionPolicy(), reshard_after_forward=False, **options)
    return model


def _names(layer: nn.Module) -> list[str]:
    known = LazyAttention.PER_HEAD if isinstance(layer, LazyAttention) else LAZY_PARAMETERS
    return [name for name in known if layer._parameters.get(name) is not None]


def full_state_dict(model: nn.Module) -> dict[str, Tensor] | None:
    """``model.state_dict()`` with every DTensor gathered. Every process must call it. If the model is sharded, the
    first process receives CPU tensors and the others None."""
    state = model.state_dict()
    if not any(isinstance(value, DTensor) for value in state.values()):
        return state
    first = distributed.get_rank() == 0
    for name, value in state.items():
        full = value.full_tensor() if isinstance(value, DTensor) else value
        state[name] = full.cpu() if first else None
    return state if first else None
