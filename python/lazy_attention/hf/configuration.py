"""LazyConfig: config.json of a Lazy Attention model folder (model_type "lazy_attention")."""

from __future__ import annotations

from huggingface_hub.dataclasses import strict
from transformers import LlamaConfig

from .pretrained import WithoutWeights


@strict
class LazyConfig(WithoutWeights, LlamaConfig):
    """A Llama-like decoder (pre-RMSNorm, rotary attention, SwiGLU, no biases) whose attention is
    `lazy_attention.LazyAttention`. It has all keys of LlamaConfig and the following ones:

    attention_gate: "none", "head" or "element", see `lazy_attention.LazyAttention`. sink_trainable: whether the sinks
    of the normalizer "softmax_sink" are trained. sink_init: initial value of the sinks.
    normalizer: see `lazy_attention.attention`. offset: "per_visible" or "constant". offset_trainable: whether tau is
    trained. offset_init: initial value of tau. distance_bias_window: number W of distances with a bias; 0 means no
    distance bias. distance_bias_init_std: standard deviation of the initial values of the distance bias.
    sliding_window: number of visible keys, including the query's own key; -1 or null means no window.
    positions, rope_interleaved: `lazy train` may write other values, but this class only supports "rope" with the pairs
    (n, n + head_dim / 2).
    """

    model_type = "lazy_attention"
    # The parallelism plans of LlamaConfig refer to modules that this model does not have. LazyForCausalLM raises an
    # error if tensor parallelism is requested.
    base_model_tp_plan = None
    base_model_pp_plan = None

    normalizer: str = "elastic"
    offset: str = "per_visible"
    offset_trainable: bool = True
    offset_init: float | int = -1.0
    sink_trainable: bool = True
    sink_init: float | int = 0.0
    attention_gate: str = "none"
    distance_bias_window: int = 512
    distance_bias_init_std: float | int = 1e-3
    sliding_window: int | None = None
    positions: str = "rope"
    rope_interleaved: bool = False
    tokenizer_fingerprint: str | None = None

    def __post_init__(self, **kwargs):
        if self.sliding_window is not None and self.sliding_window < 1:
            self.sliding_window = None  # -1 means no window here, but transformers' caches treat -1 as a window size
        if self.rope_parameters is None and "rope_theta" not in kwargs:
            self.rope_parameters = {"rope_type": "default", "rope_theta": 1.5e5}
        super().__post_init__(**kwargs)

    def rope_options(self) -> dict:
        """Returns the keyword arguments of `lazy_attention.rope` for the scaling in ``rope_parameters``."""
        found = self.rope_parameters
        if found["rope_type"] == "default":
            return {}
        return dict(
            scaling="llama3",
            factor=found["factor"],
            original_length=found["original_max_position_embeddings"],
            low_frequency=found["low_freq_factor"],
            high_frequency=found["high_freq_factor"],
        )

    def validate_architecture(self):
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads: expected a multiple of num_key_value_heads "
                f"({self.num_key_value_heads}), found {self.num_attention_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim: expected an even number, found {self.head_dim}")
        if self.rope_parameters["rope_type"] not in ("default", "llama3"):
            raise ValueError(f'rope_type: expected "default" or "llama3", found "{self.rope_parameters["rope_type"]}"')
        factor = self.rope_parameters.get("partial_rotary_factor")
        if factor not in (None, 1):
            raise ValueError(f"partial_rotary_factor: expected 1, found {factor}: use `lazy eval` for these models")
        if self.positions != "rope" or self.rope_interleaved:
            found = "interleaved pairs" if self.positions == "rope" else f'"{self.positions}"'
            raise ValueError(
                f'positions: expected "rope" that rotates halves of a head, found {found}: '
                "use `lazy eval` for these models"
            )
        if self.attention_gate not in ("none", "head", "element"):
            raise ValueError(f'attention_gate: expected "none", "head" or "element", found "{self.attention_gate}"')
        if self.attention_bias or self.mlp_bias:
            raise ValueError("attention_bias, mlp_bias: expected false: the decoder has no biases")
        if self.hidden_act not in ("silu", "swish"):
            raise ValueError(f'hidden_act: expected "silu", found "{self.hidden_act}"')
