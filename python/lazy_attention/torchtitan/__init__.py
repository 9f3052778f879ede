"""Lazy, softmax and gated models in torchtitan: FSDP2, tensor, context and pipeline parallelism. Importing this package
registers the model "lazy" with torchtitan:

    torchrun --nproc-per-node 8 -m torchtitan.train --experimental.custom_import lazy_attention.torchtitan \
        --job.custom_config_module lazy_attention.torchtitan.job_config --model.name lazy --model.flavor 340M ...

docs/guides/distributed.md describes the options. ``python -m lazy_attention.torchtitan.export`` writes a checkpoint as
a model folder.
"""

from .versions import check_versions

check_versions()

from torchtitan.components.loss import build_cross_entropy_loss
from torchtitan.components.lr_scheduler import build_lr_schedulers
from torchtitan.components.optimizer import build_optimizers
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.protocols.train_spec import TrainSpec, register_train_spec

from .arguments import FLAVORS, LazyModelArgs
from .loader import CorpusLoader, build_loader
from .model import LazyTransformer
from .parallelize import parallelize_lazy
from .state_dict import LazyStateDictAdapter

register_train_spec(
    "lazy",
    TrainSpec(
        model_cls=LazyTransformer,
        model_args=FLAVORS,
        parallelize_fn=parallelize_lazy,
        pipelining_fn=pipeline_llm,
        build_optimizers_fn=build_optimizers,
        build_lr_schedulers_fn=build_lr_schedulers,
        build_dataloader_fn=build_loader,
        build_tokenizer_fn=None,
        build_loss_fn=build_cross_entropy_loss,
        state_dict_adapter=LazyStateDictAdapter,
    ),
)

__all__ = [
    "FLAVORS",
    "CorpusLoader",
    "LazyModelArgs",
    "LazyStateDictAdapter",
    "LazyTransformer",
    "build_loader",
    "parallelize_lazy",
]
