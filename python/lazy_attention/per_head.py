"""The per-head parameters of an attention layer (tau, the sinks, the distance bias) in a child module.

A layer stores them as its own parameters until `separate` moves them into a child module, which FSDP2
can wrap as a separate unit (see `lazy_attention.hf.shard_heads`). Names in state dictionaries are the same in both
forms.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

# Name of the child module. torch.distributed.checkpoint.state_dict removes exactly this component from the parameter
# names of models and optimizers, so that checkpoints have the same names as a layer without the child module.
CHILD = "_checkpoint_wrapped_module"

SIXTEEN_BITS = (torch.bfloat16, torch.float16)


class PerHead(nn.Module):
    """Parameters of one attention layer. The forward pass returns them by name, after FSDP2 has gathered them."""

    def forward(self) -> dict[str, Tensor]:
        return dict(self._parameters)

    def _apply(self, fn, recurse: bool = True):
        return super()._apply(without_rounding(fn, self._parameters.values()), recurse)


def read(layer: nn.Module, name: str, default=None):
    """Returns the parameter, buffer or attribute `name`, from the layer or from its child module. Only for inspection:
    under FSDP2 the result may be a sharded DTensor. The forward pass calls `gathered` instead."""
    child = layer._modules.get(CHILD)
    if isinstance(child, PerHead) and name in child._parameters:
        return child._parameters[name]
    return getattr(layer, name, default)


def gathered(layer: nn.Module, names: Sequence[str]) -> list:
    """Returns the values of the parameters `names` for the forward pass, with None for names that the layer lacks."""
    child = layer._modules.get(CHILD)
    found = child() if isinstance(child, PerHead) else {}
    return [found[name] if name in found else getattr(layer, name, None) for name in names]


def separate(layer: nn.Module, names: Sequence[str]) -> PerHead | None:
    """Moves the parameters `names` of the layer into a child module, which is returned. Returns None if the layer has
    none of them (buffers stay where they are). Keys of ``state_dict`` do not change."""
    moved = [name for name in names if layer._parameters.get(name) is not None]
    if not moved:
        return None
    child = PerHead()
    for name in moved:
        child.register_parameter(name, layer._parameters.pop(name))
    layer.add_module(CHILD, child)
    layer.register_state_dict_post_hook(_remove_child_from_keys)
    layer.register_load_state_dict_pre_hook(_add_child_to_keys)
    # torch.distributed.checkpoint.state_dict calls a module's _fqn_modifiers() to learn which keys its hooks rename.
    # The function must return {parameter name: name of the child module}.
    layer._fqn_modifiers = functools.partial(dict, dict.fromkeys(moved, CHILD))
    return child


def _rename(state_dict: dict, old: str, new: str) -> None:
    if old in state_dict:
        state_dict[new] = state_dict.pop(old)


def _remove_child_from_keys(layer: nn.Module, state_dict: dict, prefix: str, _) -> None:
    for name in getattr(layer, CHILD)._parameters:
        _rename(state_dict, f"{prefix}{CHILD}.{name}", prefix + name)


def _add_child_to_keys(layer: nn.Module, state_dict: dict, prefix: str, *_) -> None:
    for name in getattr(layer, CHILD)._parameters:
        _rename(state_dict, prefix + name, f"{prefix}{CHILD}.{name}")


def without_rounding(fn, tensors: Iterable[Tensor | None]):
    """Returns the conversion `fn` of ``nn.Module._apply`` for a module with the per-head tensors `tensors`. Where `fn`
    casts one of them or its gradient to 16 bits (``layer.bfloat16()``, ``model.to(torch.bfloat16)``), the returned
    function casts it to fp32. Moves to other devices and casts to fp64 are unchanged."""
    kept = {id(t): t for tensor in tensors if tensor is not None for t in (tensor, tensor.grad)}

    def convert(t: Tensor) -> Tensor:
        converted = fn(t)
        if id(t) in kept and converted.dtype in SIXTEEN_BITS and t.dtype not in SIXTEEN_BITS:
            return t.to(converted.device, torch.float32)
        return converted

    return convert


def warn_of_rounding(tau: Tensor | None) -> None:
    """Warns if tau has been cast to 16 bits, for example by FSDP2's mixed precision. Python shows the warning once per
    call site."""
    if tau is not None and tau.dtype in SIXTEEN_BITS and not torch.compiler.is_compiling():
        warnings.warn(
            f"Lazy Attention: tau is {tau.dtype} and has been rounded, probably together with the distance bias, "
            "although they decide which keys have weight. With FSDP2, call lazy_attention.hf.shard_heads before "
            "fully_shard. Otherwise, convert the whole model or a LazyAttention layer by .to() or .bfloat16(), which "
            "leave tau in fp32",
            stacklevel=2,
        )
