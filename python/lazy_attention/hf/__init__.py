"""Integration with Hugging Face transformers. Importing this module registers the following in the process:

- ``attn_implementation="lazy"``: any model that uses AttentionInterface can compute attention with our operator;
- ``LazyConfig`` and ``LazyForCausalLM`` (model_type "lazy_attention"), with AutoConfig and AutoModelForCausalLM;
- the model families that ``make_lazy`` converts (model_type "lazy_llama", "lazy_gemma3_text", ...), with the Auto
  classes.
"""

from transformers import AttentionInterface, AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.masking_utils import AttentionMaskInterface

from .attention import lazy_attention_forward
from .configuration import LazyConfig
from .convert import make_lazy
from .families import FAMILIES, register
from .masks import lazy_mask
from .modeling import LazyForCausalLM, LazyModel
from .sharding import shard_heads

AttentionInterface.register("lazy", lazy_attention_forward)
AttentionMaskInterface.register("lazy", lazy_mask)
AutoConfig.register("lazy_attention", LazyConfig)
AutoModel.register(LazyConfig, LazyModel)
AutoModelForCausalLM.register(LazyConfig, LazyForCausalLM)
register()

__all__ = [
    "FAMILIES",
    "LazyConfig",
    "LazyForCausalLM",
    "LazyModel",
    "lazy_attention_forward",
    "lazy_mask",
    "make_lazy",
    "shard_heads",
]
