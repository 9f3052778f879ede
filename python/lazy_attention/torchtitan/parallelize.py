"""Applies torchtitan's parallelism to the model: tensor and context parallelism, activation checkpointing,
torch.compile, then FSDP2 or DDP. The steps are the same as in torchtitan's parallelize_llama, except for the per-head
parameters, which are separate fp32 units, and for context parallelism."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, parallelize_module
from torch.distributed.tensor.parallel.style import distribute_module
from torchtitan.config import TORCH_DTYPE_MAP, JobConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.activation_checkpoint import apply_ac
from torchtitan.distributed.tensor_parallel import maybe_enable_async_tp
from torchtitan.models.llama3.infra import parallelize as llama

from .arguments import fail
from .assets import write_assets
from .model import LazyTransformer, PerHead

# Selective activation checkpointing stores the outputs of these operators.
SAVED_OPERATORS = llama._op_sac_save_list | {torch.ops.lazy.attention_forward.default}


class ShardHeads(ParallelStyle):
    """Tensor parallelism for `PerHead`: the parameters are sharded by heads, and the output is this rank's part."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def shard(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
            for key, value in list(module.named_parameters(recurse=False)):
                sharded = nn.Parameter(distribute_tensor(value, mesh, [Shard(0)]), value.requires_grad)
                module.register_parameter(key, sharded)

        def to_local(module: nn.Module, outputs: tuple, mesh: DeviceMesh) -> tuple:
            return tuple(t.to_local() if isinstance(t, DTensor) else t for t in outputs)

        return distribute_module(module, device_mesh, shard, output_fn=to_local)


def parallelize_lazy(model: LazyTransformer, parallel_dims: ParallelDims, job_config: JobConfig) -> nn.Module:
    """The function parallelize_fn of torchtitan's TrainSpec. `model` is on the meta device."""
    args = model.model_args
    _check(model, parallel_dims, job_config)
    write_assets(args, job_config)
    blocks = list(model.layers.values())
    if parallel_dims.tp_enabled:
        mesh = parallel_dims.get_mesh("tp")
        llama.apply_tp(
            model,
            mesh,
            loss_parallel=not job_config.parallelism.disable_loss_parallel,
            enable_float8_tensorwise_tp=False,
            cp_enabled=parallel_dims.cp_enabled,
        )
        gate = {} if args.attention_gate == "none" else {"attention.gate": ColwiseParallel()}
        for block in blocks:
            parallelize_module(block, mesh, {"per_head": ShardHeads(), **gate})
        maybe_enable_async_tp(job_config, mesh)
    if parallel_dims.cp_enabled:
        for block in blocks:
            block.attention.cp_mesh = parallel_dims.get_mesh("cp")
            block.attention.cp_balanced = job_config.parallelism.context_parallel_load_balancer == "headtail"
    compiled = job_config.compile.enable and "model" in job_config.compile.components
    if job_config.activation_checkpoint.mode != "none":
        apply_ac(
            model,
            job_config.activation_checkpoint,
            model_compile_enabled=compiled,
            op_sac_save_list=SAVED_OPERATORS,
            base_folder=job_config.job.dump_folder,
        )
    if compiled:
        llama.apply_compile(model, job_config.compile)
    if parallel_dims.fsdp_enabled:
        _apply_fsdp(model, [block.per_head for block in blocks], parallel_dims, job_config)
    elif parallel_dims.dp_replicate_enabled:
        mesh = parallel_dims.get_mesh("dp_replicate")
        if parallel_dims.world_size != mesh.size():
            fail("expected data_parallel_shard_degree above 1: DDP cannot be combined with other kinds of parallelism")
        llama.apply_ddp(model, mesh, enable_compile=compiled)
    return model


def _apply_fsdp(model: nn.Module, per_head: list[PerHead], parallel_dims: ParallelDims, job_config: JobConfig) -> None:
    mesh = parallel_dims.get_mesh(["dp_replicate", "fsdp"] if parallel_dims.dp_replicate_enabled else ["fsdp"])
    offload = job_config.training.enable_cpu_offload
    for unit in per_head:
        if not list(unit.parameters()):
            continue
        # reshard_after_forward must be False, because the module returns its parameters.
        options = {"offload_policy": CPUOffloadPolicy()} if offload else {}
        fully_shard(unit, mesh=mesh, mp_policy=MixedPrecisionPolicy(), reshard_after_forward=False, **options)
    llama.apply_fsdp(
        model,
        mesh,
        param_dtype=TORCH_DTYPE_MAP[job_config.training.mixed_precision_param],
        reduce_dtype=TORCH_DTYPE_MAP[job_config.training.mixed_precision_reduce],
        pp_enabled=parallel_dims.pp_enabled,
        cpu_offload=offload,
        reshard_after_forward_policy=job_config.parallelism.fsdp_reshard_after_forward,
    )


def _check(model: LazyTransformer, parallel_dims: ParallelDims, job_config: JobConfig) -> None:
    args, length = model.model_args, job_config.training.seq_len
    if length % parallel_dims.seq_len_divisor:
        fail(f"training.seq_len: expected a multiple of {parallel_dims.seq_len_divisor} (TP and CP), found {length}")
    for name in ("n_heads", "n_kv_heads"):
        if parallel_dims.tp_enabled and getattr(args, name) % parallel_dims.tp:
            fail(f"tensor_parallel_degree {parallel_dims.tp}: expected a divisor of {name} {getattr(args, name)}")
    balancer = job_config.parallelism.context_parallel_load_balancer
    if parallel_dims.cp_enabled and balancer not in ("headtail", None):
        fail(f'parallelism.context_parallel_load_balancer: expected "headtail" or none, found "{balancer}"')
    if parallel_dims.tp_enabled and any("float8" in name for name in job_config.model.converters):
        fail("model.converters: float8 with tensor parallelism is not supported")
