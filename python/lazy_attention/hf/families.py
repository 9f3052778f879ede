"""Lazy Attention variants of transformers model families. Each variant adds tau and a distance bias to every layer.

A model folder has the config.json and the tensors of the base family with these differences: ``model_type`` has the
prefix "lazy_" ("lazy_llama" for "llama"), config.json has the additional keys of `lazy_config_class`, and there are
fp32 tensors ``model.layers.N.self_attn.lazy_tau`` (heads) and, unless distance_bias_window is 0,
``model.layers.N.self_attn.lazy_distance_bias`` (heads, W).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.models.auto.tokenization_auto import (
    MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS,
    TOKENIZER_MAPPING_NAMES,
)

from ..per_head import read, without_rounding
from .attention import LAZY_PARAMETERS, READ_WEIGHTS
from .pretrained import LazyPreTrained, WithoutWeights

# All of these families have softmax attention with rotary positions. Their attention layers are named self_attn and
# have an output projection o_proj.
_WITHOUT_SINKS = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo2", "phi3", "gemma2", "gemma3_text")
_WITH_SINKS = ("gpt_oss", "granite_swa")  # every layer has the parameter `sinks` (heads)
FAMILIES = _WITHOUT_SINKS + _WITH_SINKS
_AUTO_CLASSES = (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoModelForQuestionAnswering,
)


# Pairs (old, new) of parts of tensor names. Earlier versions saved converted Llama and Mistral models with the tensor
# names of LazyForCausalLM (old). This module uses the new names.
_NAMES = (
    (".embeddings.", ".embed_tokens."),
    (".attn.softmax_offset", ".self_attn.lazy_tau"),
    (".attn.learnable_bias_diagonals", ".self_attn.lazy_distance_bias"),
    (".attn.", ".self_attn."),
    (".attn_norm.", ".input_layernorm."),
    (".mlp_norm.", ".post_attention_layernorm."),
)


@functools.cache
def lazy_config_class(base: type[PreTrainedConfig]) -> type[PreTrainedConfig]:
    """Returns a configuration class that extends `base` by the following keys.

    normalizer: `lazy_normalizer` of the family. offset: "per_visible" or "constant". offset_trainable: whether tau is
    trained. offset_init: initial value of tau. distance_bias_window: number W of distances with a bias; 0 means no
    distance bias. distance_bias_init_std: standard deviation of the initial values of the distance bias.
    """
    default_normalizer = lazy_normalizer(base.model_type)

    @strict
    class Config(WithoutWeights, base):
        model_type = f"lazy_{base.model_type}"
        # Tau and the distance bias have no sharding plan. LazyPreTrained raises an error for tensor parallelism.
        base_model_tp_plan = None
        base_model_pp_plan = None

        normalizer: str = default_normalizer
        offset: str = "per_visible"
        offset_trainable: bool = True
        offset_init: float | int = 0.0
        distance_bias_window: int = 0
        distance_bias_init_std: float | int = 0.0

        def validate_lazy_keys(self):
            check_lazy_keys(vars(self), default_normalizer)

    return _published(Config, f"Lazy{base.__name__}")


def lazy_normalizer(model_type: str) -> str:
    """Returns the normalizer of the converted models of a family: "elastic_sink" for models with sinks."""
    return "elastic_sink" if model_type in _WITH_SINKS else "elastic"


def check_lazy_keys(values: Mapping, normalizer: str, argument_of: Mapping[str, str] | None = None) -> None:
    """Raises ValueError if a key of `lazy_config_class` has an invalid value in `values`. `normalizer` is the
    `lazy_normalizer` of the family. The message names the key, or the function argument to which `argument_of` maps the
    key."""
    names = argument_of or {}

    def expect(valid: bool, key: str, expected: str) -> None:
        if not valid:
            raise ValueError(f"{names.get(key, key)}: expected {expected}, found {values[key]!r}")

    expect(values["normalizer"] == normalizer, "normalizer", f'"{normalizer}"')
    expect(values["offset"] in ("per_visible", "constant"), "offset", '"per_visible" or "constant"')
    window = values["distance_bias_window"]
    expect(type(window) is int and window >= 0, "distance_bias_window", "a whole number of at least 0")
    for key in ("offset_init", "distance_bias_init_std"):
        expect(type(values[key]) in (int, float) and math.isfinite(values[key]), key, "a finite number")
    expect(values["distance_bias_init_std"] >= 0, "distance_bias_init_std", "at least 0")


@functools.cache
def lazy_model_class(base: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """Returns a subclass of the transformers model class `base` that computes Lazy Attention."""
    made = type(f"Lazy{base.__name__}", (LazyFamilyModel, base), {"config_class": lazy_config_class(base.config_class)})
    return _published(made, made.__name__)


def _published(made: type, name: str) -> type:
    """Publishes the class as an attribute of this module, so that pickle can find it by name."""
    made.__name__ = made.__qualname__ = name
    made.__module__ = __name__
    globals()[name] = made
    return made


class LazyFamilyModel(LazyPreTrained):
    """Mixin that adds tau and the distance bias to every attention layer of a transformers model, according to the keys
    of the model configuration."""

    def __init__(self, config: PreTrainedConfig, *args, **kwargs):
        if not isinstance(config, self.config_class):
            raise TypeError(
                f"{type(self).__name__}: expected a {self.config_class.__name__}, received {type(config).__name__}"
            )
        super().__init__(config, *args, **kwargs)
        self.add_lazy_parameters()

    @classmethod
    def from_pretrained(cls, folder, *args, output_loading_info: bool = False, **kwargs):
        """Loads a model like the method of transformers. Raises ValueError if the folder has a distance bias that its
        configuration does not describe. transformers would only warn and ignore the distance bias."""
        model, info = super().from_pretrained(folder, *args, output_loading_info=True, **kwargs)
        unexpected = sorted(name for name in info["unexpected_keys"] if name.rpartition(".")[2] in LAZY_PARAMETERS)
        if unexpected:
            raise ValueError(
                f"{folder}: {unexpected[0]}: expected no such tensor with distance_bias_window = "
                f"{model.config.distance_bias_window}, found {len(unexpected)}"
            )
        return (model, info) if output_loading_info else model

    def add_lazy_parameters(self) -> None:
        """Adds initialized tau and distance bias parameters to every attention layer, as described by the
        configuration."""
        config = self.config
        for layer in attention_layers(self):
            layer.lazy_normalizer, layer.lazy_offset = config.normalizer, config.offset
            fp32 = dict(dtype=torch.float32, device=layer.o_proj.weight.device)
            for name in LAZY_PARAMETERS:  # remove the parameters of an earlier make_lazy call
                layer._parameters.pop(name, None)
                layer._buffers.pop(name, None)
            tau = torch.empty(config.num_attention_heads, **fp32)
            if config.offset_trainable:
                layer.lazy_tau = nn.Parameter(tau)
            else:
                layer.register_buffer("lazy_tau", tau)
            if config.distance_bias_window:
                shape = config.num_attention_heads, config.distance_bias_window
                layer.lazy_distance_bias = nn.Parameter(torch.empty(shape, **fp32))
            if _refuse_others not in layer._forward_pre_hooks.values():
                layer.register_forward_pre_hook(_refuse_others)
        self.initialize_lazy_parameters()

    @torch.no_grad()
    def initialize_lazy_parameters(self) -> None:
        """Initializes tau and the distance bias. Tensors that from_pretrained has loaded are not changed."""
        for layer in attention_layers(self):
            tau, bias = (read(layer, name) for name in LAZY_PARAMETERS)
            if tau is not None:
                init.constant_(tau, self.config.offset_init)
            if bias is not None:
                init.normal_(bias, 0.0, self.config.distance_bias_init_std)

    def _apply(self, fn, recurse: bool = True):
        """Converts the model (``to``, ``bfloat16``, ``cuda``, ...). Tau and the distance bias are never cast to 16
        bits."""
        layers = attention_layers(self)
        tensors = [getattr(layer, name, None) for layer in layers for name in LAZY_PARAMETERS]
        return super()._apply(without_rounding(fn, tensors), recurse)

    def initialize_weights(self):
        super().initialize_weights()
        self.initialize_lazy_parameters()

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args):
        """Also accepts the tensor names of LazyForCausalLM, which earlier versions of this class saved, so that
        load_state_dict and Trainer's resume_from_checkpoint can read these older checkpoints."""
        if f"{prefix}model.embeddings.weight" in state_dict:
            for name in list(state_dict):
                old, new = next((pair for pair in _NAMES if pair[0] in name), ("", ""))
                state_dict[name.replace(old, new)] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def save_pretrained(self, save_directory, *args, **kwargs):
        """Writes a folder that the program `lazy` can read. `AutoModelForCausalLM.from_pretrained` can read it after
        ``import lazy_attention.hf``. The arguments are the same as in transformers. If the model is sharded by FSDP2,
        every process must call this method. Raises ValueError for a model with PEFT adapters whose base model was
        converted in this process: the saved adapters would name the unconverted model as their base model.
        """
        if getattr(self, "_hf_peft_config_loaded", False) and not self.name_or_path:
            raise ValueError(
                f"save_pretrained: expected a {type(self).__name__} without adapters, because they would name the "
                "model before make_lazy as their base model: merge the adapters, or save the model without them and "
                "add them after from_pretrained"
            )
        super().save_pretrained(save_directory, *args, **kwargs)


def attention_layers(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if hasattr(m, "layer_idx") and hasattr(m, "head_dim") and hasattr(m, "o_proj")]


def _refuse_others(layer: nn.Module, _) -> None:
    """Forward pre-hook of an attention layer. Raises ValueError if the layer's configuration selects an attention
    implementation other than "lazy", for example because a caller has assigned config._attn_implementation directly."""
    found = layer.config._attn_implementation
    if found != "lazy":
        raise ValueError(
            f'make_lazy: expected attn_implementation="lazy", which computes tau and the distance bias of this model, '
            f'found "{found}"' + (f"; {READ_WEIGHTS}" if found == "eager" else "")
        )


def register() -> None:
    """Registers the Lazy Attention classes with the Auto classes, for the families that the installed transformers
    version provides."""
    for family in FAMILIES:
        if family not in CONFIG_MAPPING:
            continue
        base = CONFIG_MAPPING[family]
        config = lazy_config_class(base)
        AutoConfig.register(config.model_type, config)
        for auto in _AUTO_CLASSES:
            if base in auto._model_mapping:
                auto.register(config, lazy_model_class(auto._model_mapping[base]))
        # AutoTokenizer selects the tokenizer class by model_type. Use the same class as for the base family.
        TOKENIZER_MAPPING_NAMES[config.model_type] = TOKENIZER_MAPPING_NAMES.get(family)
        if family in MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS:
            MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS.add(config.model_type)
