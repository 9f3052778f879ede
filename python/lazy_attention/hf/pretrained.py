"""Base classes of all Lazy Attention models and configurations of this package. They reject unsupported options, keep
the per-head parameters in fp32, and save models that are sharded by FSDP2."""

from __future__ import annotations

import shutil
from pathlib import Path

from torch.distributed.tensor import DTensor
from transformers.distributed import DistributedConfig

from .attention import LAZY_PARAMETERS, READ_WEIGHTS
from .sharding import full_state_dict


def expect_no_weights(name: str, output_attentions: bool | None) -> None:
    """Raises ValueError if output_attentions is true, because the kernels do not store the attention weights."""
    if output_attentions:
        raise ValueError(
            f"{name}: expected output_attentions=False, received {output_attentions}: the kernel does not store the "
            f"attention weights; {READ_WEIGHTS}"
        )


class WithoutWeights:
    """Mixin that must precede the transformers configuration class in the list of base classes. It rejects
    output_attentions=True. transformers would recommend or select attn_implementation="eager", which Lazy Attention
    models do not support."""

    @property
    def output_attentions(self) -> bool | None:
        return self._output_attentions

    @output_attentions.setter
    def output_attentions(self, value: bool | None) -> None:
        expect_no_weights(type(self).__name__, value)
        self._output_attentions = value

    def validate_output_attentions(self) -> None:
        expect_no_weights(type(self).__name__, self._output_attentions)


class LazyPreTrained:
    """Mixin that must precede the transformers model class in the list of base classes."""

    # vLLM's transformers backend reads this attribute. It must be False because no other attention implementation
    # supports tau, the distance bias and the sinks.
    _supports_attention_backend = False
    # These parameters decide which query-key pairs have a nonzero weight. They stay in fp32 for every model type.
    _keep_in_fp32_modules_strict = ["softmax_offset", "learnable_bias_diagonals", "sinks", *LAZY_PARAMETERS]

    def __init__(self, config, *args, **kwargs):
        self.expect_lazy(config._attn_implementation or "lazy")
        config._attn_implementation = "lazy"
        super().__init__(config, *args, **kwargs)

    @classmethod
    def expect_lazy(cls, implementation: str) -> None:
        """Raises ValueError for any other attention implementation, because it would silently ignore tau, the distance
        bias and the sinks."""
        if implementation != "lazy":
            raise ValueError(
                f'{cls.__name__}: expected attn_implementation="lazy" (or none), which runs fused kernels and is the '
                f'only implementation of tau, the distance bias and the sinks, received "{implementation}"'
                + (f"; {READ_WEIGHTS}" if implementation == "eager" else "")
            )

    def set_attn_implementation(self, attn_implementation, *args, **kwargs) -> None:
        self.expect_lazy(attn_implementation)

    @classmethod
    def prepare_distribute_model(cls, distributed_config, *args, **kwargs):
        """Raises ValueError for parallelism options under which transformers would compute wrong results. The check
        runs before the process group is set up."""
        if distributed_config is not None:
            given = distributed_config
            given = DistributedConfig.from_dict(given) if isinstance(given, dict) else given
            if given.tp_plan is not None or any(
                (getattr(given, name, None) or 1) > 1 for name in ("tp_size", "pp_size", "ep_size")
            ):
                raise ValueError(
                    f"{cls.__name__}: expected no tensor, pipeline or expert parallelism (tp_plan, tp_size, pp_size, "
                    "ep_size): tau and the distance bias have no sharding plan; use FSDP2"
                )
            if getattr(given, "fsdp_mixed_precision", False):
                raise ValueError(
                    f"{cls.__name__}: expected fsdp_mixed_precision=False, which casts tau and the distance bias to "
                    "bf16: call lazy_attention.hf.shard_heads and fully_shard instead"
                )
        return super().prepare_distribute_model(distributed_config, *args, **kwargs)

    def save_pretrained(self, save_directory, *args, state_dict=None, distributed_checkpoint=False, **kwargs):
        """Saves the model like the method of transformers, with a README.md that explains how to load it. A model that
        is sharded by FSDP2 is gathered first, so every process must call this method."""
        if state_dict is None and not distributed_checkpoint and any(isinstance(p, DTensor) for p in self.parameters()):
            state_dict = full_state_dict(self)
            if state_dict is None:  # only the first process writes files
                return
        super().save_pretrained(
            save_directory, *args, state_dict=state_dict, distributed_checkpoint=distributed_checkpoint, **kwargs
        )
        card = Path(save_directory) / "README.md"
        if card.parent.is_dir() and not card.exists():
            shutil.copyfile(Path(__file__).with_name("model_card.md"), card)
