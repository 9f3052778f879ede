"""Hugging Face transformers glue. Importing this registers, for the process,

- ``attn_implementation="lazy"``: any model that goes through AttentionInterface computes with our operator;
- ``LazyConfig`` and ``LazyForCausalLM`` (model_type "lazy_attention") with AutoConfig and AutoModelForCausalLM.
"""

from transformers import AttentionInterface, AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.masking_utils import AttentionMaskInterface

from .attention import lazy_attention_forward
from .configuration import LazyConfig
from .convert import make_lazy
from .masks import lazy_mask
from .modeling import LazyForCausalLM, LazyModel
from .sharding import shard_heads

AttentionInterface.register("lazy", lazy_attention_forward)
AttentionMaskInterface.register("lazy", lazy_mask)
AutoConfig.register("lazy_attention", LazyConfig)
AutoModel.register(LazyConfig, LazyModel)
AutoModelForCausalLM.register(LazyConfig, LazyForCausalLM)

__all__ = [
    "LazyConfig",
    "LazyForCausalLM",
    "LazyModel",
    "lazy_attention_forward",
    "lazy_mask",
    "make_lazy",
    "shard_heads",
]
