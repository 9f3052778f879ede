"""LazyForCausalLM: the decoder of the `lazy` program as a transformers model, with the same tensor names."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from ..fused import rms_norm, rope, swiglu
from ..layer import LazyAttention
from ..per_head import read
from .attention import attend
from .configuration import LazyConfig
from .pretrained import LazyPreTrained, expect_no_weights

# Name of the KV-cache argument and output in the installed transformers version: "cache" since 5.24, previously
# "past_key_values".
CACHE = "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else "past_key_values"


class LazyNorm(nn.Module):
    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class LazyDecoderAttention(LazyAttention):
    """LazyAttention with transformers' KV caches and masks."""

    def __init__(self, config: LazyConfig, layer_idx: int):
        window = -1 if config.sliding_window is None else config.sliding_window
        super().__init__(
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            normalizer=config.normalizer,
            offset=config.offset,
            tau=config.offset_init,
            tau_trainable=config.offset_trainable,
            distance_bias_window=config.distance_bias_window,
            distance_bias_std=config.distance_bias_init_std,
            rope_base=config.rope_parameters["rope_theta"] or None,  # rope_theta 0 means no rotary embedding
            rope_options=config.rope_options(),
            window=window,
            sink=config.sink_init,
            sink_trainable=config.sink_trainable,
            gate=config.attention_gate,
        )
        self.layer_idx = layer_idx

    def forward(self, x: Tensor, mask: Tensor | None, positions: Tensor | None, past: Cache | None) -> Tensor:
        q, k, v = self.project(x)
        if self.rope_base is not None:
            q, k = (rope(t, self.rope_base, positions=positions, **self.rope_options) for t in (q, k))
        if past is not None:  # caches hold (batch, kv heads, length, head_dim)
            k, v = past.update(k.transpose(1, 2), v.transpose(1, 2), self.layer_idx)
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        out = attend(
            q,
            k,
            v,
            mask,
            **self.per_head_arguments(q),
            normalizer=self.normalizer,
            offset=self.offset,
            window=self.window,
        )
        return self.o_proj(self.gated(out, x).flatten(-2))


class LazyMLP(nn.Module):
    def __init__(self, config: LazyConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class LazyDecoderLayer(GradientCheckpointingLayer):
    def __init__(self, config: LazyConfig, layer_idx: int):
        super().__init__()
        self.attn_norm = LazyNorm(config.hidden_size, config.rms_norm_eps)
        self.attn = LazyDecoderAttention(config, layer_idx)
        self.mlp_norm = LazyNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LazyMLP(config)

    def forward(
        self, x: Tensor, mask: Tensor | None, positions: Tensor | None, past_key_values: Cache | None = None
    ) -> Tensor:
        x = x + self.attn(self.attn_norm(x), mask, positions, past_key_values)
        return x + self.mlp(self.mlp_norm(x))


class LazyPreTrainedModel(LazyPreTrained, PreTrainedModel):
    config_class = LazyConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["LazyDecoderLayer"]
    _skip_keys_device_placement = ["past_key_values", "cache"]
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # N(0, initializer_range) for projections and embeddings
        if isinstance(module, LazyNorm):
            init.ones_(module.weight)
        elif isinstance(module, LazyDecoderAttention):
            bias, tau, sinks = (read(module, name) for name in module.PER_HEAD)
            if tau is not None:
                init.constant_(tau, module.tau_init)
            if sinks is not None:
                init.constant_(sinks, module.sink_init)
            if bias is not None:
                init.normal_(bias, 0.0, module.distance_bias_std)


class LazyModel(LazyPreTrainedModel):
    def __init__(self, config: LazyConfig):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(LazyDecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = LazyNorm(config.hidden_size, config.rms_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self):
        return self.embeddings

    def set_input_embeddings(self, value):
        self.embeddings = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        cache: Cache | None = None,
        **_,
    ) -> BaseModelOutputWithPast:
        self.expect_lazy(self.config._attn_implementation)
        expect_no_weights(type(self).__name__, output_attentions)
        past_key_values = past_key_values if cache is None else cache
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("LazyModel: expected either input_ids or inputs_embeds")
        if input_ids is not None and input_ids.dim() != 2:
            raise ValueError(
                f"LazyModel: expected input_ids of shape (batch, length), received {tuple(input_ids.shape)}"
            )
        x = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        use_cache = self.config.use_cache and not self.training if use_cache is None else use_cache
        if self.gradient_checkpointing and self.training:
            use_cache = False
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        seen = past_key_values.get_seq_length() if past_key_values is not None else 0
        make_mask = create_causal_mask if self.config.sliding_window is None else create_sliding_window_causal_mask
        mask = make_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            position_ids=position_ids,
            **{CACHE: past_key_values},
        )
        if position_ids is None and not (isinstance(seen, int) and seen == 0):
            position_ids = torch.arange(x.shape[1], device=x.device) + seen
        if position_ids is not None and position_ids.dim() == 2:
            position_ids = position_ids.expand(x.shape[0], -1)
        hidden_states = [x] if output_hidden_states else None
        for layer in self.layers:
            x = layer(x, mask, position_ids, past_key_values=past_key_values)
            if hidden_states is not None:
                hidden_states.append(x)
        x = self.norm(x)
        if hidden_states is not None:
            hidden_states[-1] = x
        return BaseModelOutputWithPast(
            last_hidden_state=x,
            hidden_states=tuple(hidden_states) if hidden_states else None,
            **{CACHE: past_key_values},
        )


class LazyForCausalLM(LazyPreTrainedModel, GenerationMixin):
    """A decoder with Lazy Attention and a language-model head. It reads and writes the folders of `lazy train` and
    `lazy export`. `AutoModelForCausalLM.from_pretrained(folder)` selects this class by ``model_type``."""

    _tied_weights_keys = {"lm_head.weight": "model.embeddings.weight"}

    def __init__(self, config: LazyConfig):
        super().__init__(config)
        self.model = LazyModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embeddings

    def set_input_embeddings(self, value):
        self.model.embeddings = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        cache: Cache | None = None,
        **kwargs,
    ) -> CausalLMOutputWithPast | tuple:
        """The arguments and results are the same as for other causal language models of transformers. input_ids:
        (batch, length), int64. attention_mask: (batch, length), 0 at padding. labels: the same shape as input_ids; the
        caller must not shift them, and tokens with the label -100 are excluded from the loss. The result has logits
        (batch, length, vocabulary), or only the last logits_to_keep positions, and the loss in nats per token."""
        result = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values if cache is None else cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
        hidden = result.last_hidden_state
        if isinstance(logits_to_keep, Tensor):
            hidden = hidden[:, logits_to_keep]
        elif logits_to_keep:
            hidden = hidden[:, -logits_to_keep:]
        logits = self.lm_head(hidden)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        out = CausalLMOutputWithPast(
            loss=loss, logits=logits, hidden_states=result.hidden_states, **{CACHE: getattr(result, CACHE)}
        )
        return out.to_tuple() if return_dict is False else out
