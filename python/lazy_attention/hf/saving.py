"""save_pretrained of models converted by make_lazy: they are written as LazyForCausalLM folders."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .attention import LAZY_PARAMETERS
from .configuration import LazyConfig
from .modeling import LazyForCausalLM
from .sharding import full_state_dict

# Parts of parameter names in transformers' Llama and Mistral, and in LazyForCausalLM.
_NAMES = (
    (".embed_tokens.", ".embeddings."),
    (".self_attn.lazy_tau", ".attn.softmax_offset"),
    (".self_attn.lazy_distance_bias", ".attn.learnable_bias_diagonals"),
    (".self_attn.", ".attn."),
    (".input_layernorm.", ".attn_norm."),
    (".post_attention_layernorm.", ".mlp_norm."),
)
_FAMILIES = ("llama", "mistral")
_SAME_KEYS = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "hidden_act max_position_embeddings initializer_range rms_norm_eps rope_parameters use_cache pad_token_id "
    "bos_token_id eos_token_id tie_word_embeddings"
).split()


def _renamed(name: str, pairs) -> str:
    for old, new in pairs:
        if old in name:
            return name.replace(old, new)
    return name


def _refuse(model: nn.Module, reason: str):
    raise ValueError(
        f"save_pretrained: a {type(model).__name__.removeprefix('FSDP')} converted by make_lazy cannot be saved as a "
        f"LazyForCausalLM folder: {reason}. Use torch.save(model.state_dict(), FILE); to load it, build the model, "
        "call make_lazy with the same arguments, then load_state_dict"
    )


def lazy_configuration(model: PreTrainedModel) -> LazyConfig:
    """The LazyConfig of a model converted by make_lazy. Raises ValueError if LazyForCausalLM has no equal layers."""
    config = model.config
    if config.model_type not in _FAMILIES or not type(model).__name__.endswith("ForCausalLM"):
        _refuse(model, f"expected a causal language model of {' or '.join(_FAMILIES)}, found {config.model_type}")
    if getattr(model, "_hf_peft_config_loaded", False):
        _refuse(model, "adapters must be merged into the weights first")
    tau = _per_head_parameters(model)[0]
    settings = {name: copy.deepcopy(getattr(config, name)) for name in _SAME_KEYS if hasattr(config, name)}
    for name in ("attention_bias", "mlp_bias"):
        if getattr(config, name, False):
            _refuse(model, f"expected {name}=False, found True")
    try:
        return LazyConfig(
            **settings,
            normalizer=config.lazy_normalizer,
            offset=config.lazy_offset,
            offset_trainable=tau.requires_grad,
            offset_init=model.lazy_arguments["tau"],
            distance_bias_window=config.lazy_distance_bias_window,
            distance_bias_init_std=model.lazy_arguments["distance_bias_std"],
            sliding_window=getattr(config, "sliding_window", None),
        )
    except Exception as error:  # huggingface_hub wraps the ValueError of a validator
        _refuse(model, str(error.__cause__ or error).splitlines()[-1].strip().rstrip("."))


def _per_head_parameters(model: nn.Module) -> list[Tensor]:
    return [p for name, p in model.named_parameters() if name.rpartition(".")[2] == LAZY_PARAMETERS[0]]


def save_pretrained(self: PreTrainedModel, save_directory, *args, state_dict: dict | None = None, **options) -> None:
    """Writes a LazyForCausalLM folder, which `AutoModelForCausalLM.from_pretrained` reads after
    ``import lazy_attention.hf``, and which the program `lazy` reads. Arguments: those of transformers' method.

    Every process must call it if the model is sharded by FSDP2. Raises ValueError if the model has parts that
    LazyForCausalLM does not have (biases, norms of queries and keys, adapters)."""
    config = lazy_configuration(self)
    if state_dict is None:
        state_dict = full_state_dict(self)
        if state_dict is None:  # the first process writes
            return
    with torch.device("meta"):
        written = LazyForCausalLM(config).to(self.dtype)
    written.generation_config = self.generation_config
    state_dict = {_renamed(name, _NAMES): value for name, value in state_dict.items()}
    known = written.state_dict().keys()
    if unknown := sorted(state_dict.keys() - known):
        _refuse(self, f"it has no tensor {unknown[0]}")
    tied = set(written._tied_weights_keys) if config.tie_word_embeddings else set()
    if missing := sorted(known - state_dict.keys() - tied):
        _refuse(self, f"the state dictionary has no tensor {missing[0]}")
    written.save_pretrained(save_directory, *args, state_dict=state_dict, **options)


def read_lazy_names(model: nn.Module, state_dict: dict, prefix: str, *_) -> None:
    """Pre-hook of load_state_dict: accepts the tensor names of the folders that `save_pretrained` writes, so that a
    training run can continue from them (Trainer's resume_from_checkpoint)."""
    if f"{prefix}model.embeddings.weight" not in state_dict:
        return
    back = [(new, old) for old, new in _NAMES]
    for name in list(state_dict):
        state_dict[_renamed(name, back)] = state_dict.pop(name)
