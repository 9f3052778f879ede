"""LazyModelArgs: torchtitan's description of a model, read from and written to config.json of a model folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn
from torchtitan.config import JobConfig
from torchtitan.models.llama3.model.args import TransformerModelArgs
from torchtitan.models.utils import get_dense_model_nparams_and_flops

from ..operator import TAKES_SINK, TAKES_TAU

# (field of LazyModelArgs, key of config.json): keys of both model types, and keys of "lazy_attention" only.
DECODER_KEYS = (
    ("vocab_size", "vocab_size"),
    ("dim", "hidden_size"),
    ("intermediate_size", "intermediate_size"),
    ("n_layers", "num_hidden_layers"),
    ("n_heads", "num_attention_heads"),
    ("n_kv_heads", "num_key_value_heads"),
    ("head_dim", "head_dim"),
    ("norm_eps", "rms_norm_eps"),
    ("max_position_embeddings", "max_position_embeddings"),
    ("initializer_range", "initializer_range"),
)
LAZY_KEYS = (
    ("normalizer", "normalizer"),
    ("offset", "offset"),
    ("offset_trainable", "offset_trainable"),
    ("offset_init", "offset_init"),
    ("sink_trainable", "sink_trainable"),
    ("sink_init", "sink_init"),
    ("attention_gate", "attention_gate"),
    ("distance_bias_window", "distance_bias_window"),
    ("distance_bias_init_std", "distance_bias_init_std"),
    ("sliding_window", "sliding_window"),
)
# Keys of config.json with the values that the plug-in supports. An absent key has the first value.
FIXED_KEYS = {
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "hidden_act": ("silu", "swish"),
    "tie_word_embeddings": (False,),
    "positions": ("rope",),
    "rope_interleaved": (False,),
    "quantization_config": (None,),
    "pretraining_tp": (1, None),
}


def fail(message: str) -> None:
    raise ValueError(f"lazy_attention.torchtitan: {message}")


@dataclass
class LazyModelArgs(TransformerModelArgs):
    """The fields correspond to `lazy_attention.hf.LazyConfig`; the sizes have torchtitan's names. ``model_type`` is
    "lazy_attention" or "llama" and selects the tensor names of the model folder. The flavor "folder" has
    ``from_folder`` set: all other fields are read from config.json in ``model.hf_assets_path``."""

    norm_eps: float = 1e-6
    rope_theta: float = 150000.0
    model_type: str = "lazy_attention"
    head_dim: int = 64
    intermediate_size: int = 2816
    max_position_embeddings: int = 4096
    initializer_range: float = 0.02
    normalizer: str = "elastic"
    offset: str = "per_visible"
    offset_trainable: bool = True
    offset_init: float = -1.0
    sink_trainable: bool = True
    sink_init: float = 0.0
    attention_gate: str = "none"
    distance_bias_window: int = 512
    distance_bias_init_std: float = 1e-3
    sliding_window: int = -1
    rope_parameters: dict = field(default_factory=dict)  # config.json's key, if RoPE is scaled
    from_folder: bool = False

    @property
    def has_tau(self) -> bool:
        return self.normalizer in TAKES_TAU

    @property
    def has_sink(self) -> bool:
        return self.normalizer in TAKES_SINK

    @property
    def rope_options(self) -> dict:
        """Keyword arguments of `lazy_attention.rope` for the scaling in rope_parameters."""
        if not self.rope_parameters:
            return {}
        found = self.rope_parameters
        return dict(
            scaling="llama3",
            factor=float(found["factor"]),
            original_length=int(found["original_max_position_embeddings"]),
            low_frequency=float(found["low_freq_factor"]),
            high_frequency=float(found["high_freq_factor"]),
        )

    def update_from_config(self, job_config: JobConfig, **_) -> None:
        if self.from_folder:
            self.read_json(Path(job_config.model.hf_assets_path) / "config.json")
        self.max_seq_len = job_config.training.seq_len
        self.max_position_embeddings = max(self.max_position_embeddings, self.max_seq_len)

    def get_nparams_and_flops(self, model: nn.Module, seq_len: int) -> tuple[int, int]:
        return get_dense_model_nparams_and_flops(self, model, 2 * self.head_dim, seq_len)

    def read_json(self, path: Path) -> None:
        """Sets the fields from a config.json of model_type "lazy_attention" or "llama"."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            fail(f'flavor "folder": expected model.hf_assets_path to be a model folder: {path}: {error.strerror}')
        model_type = found.get("model_type")
        if model_type not in ("lazy_attention", "llama"):
            fail(f'{path}: model_type: expected "lazy_attention" or "llama", found {model_type!r}')
        for key, allowed in FIXED_KEYS.items():
            if found.get(key, allowed[0]) not in allowed:
                fail(f"{path}: {key}: expected {allowed[0]!r}, found {found[key]!r}")
        self.model_type = model_type
        if model_type == "llama":
            self.normalizer, self.distance_bias_window, self.attention_gate = "softmax", 0, "none"
            self.rope_theta = 10000.0  # transformers' defaults for this model type
        for name, key in DECODER_KEYS + (LAZY_KEYS if model_type == "lazy_attention" else ()):
            if found.get(key) is not None:
                setattr(self, name, found[key])
        if found.get("num_key_value_heads") is None:
            self.n_kv_heads = self.n_heads
        if found.get("head_dim") is None:
            self.head_dim = self.dim // self.n_heads
        rope = found.get("rope_parameters") or found.get("rope_scaling") or {}
        self.rope_theta = rope.get("rope_theta", found.get("rope_theta", self.rope_theta))
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "llama3") or rope.get("partial_rotary_factor") not in (None, 1):
            fail(f'{path}: rope_parameters: expected rope_type "default" or "llama3", found {rope!r}')
        self.rope_parameters = dict(rope) if kind == "llama3" else {}

    def to_json(self) -> dict:
        """Returns the contents of config.json. `lazy` and transformers read it."""
        lazy = self.model_type == "lazy_attention"
        out = {
            "architectures": ["LazyForCausalLM" if lazy else "LlamaForCausalLM"],
            "model_type": self.model_type,
            **{key: getattr(self, name) for name, key in DECODER_KEYS},
            **{key: allowed[0] for key, allowed in FIXED_KEYS.items() if allowed[0] is False and key[:4] != "rope"},
            "hidden_act": "silu",
            "rope_theta": self.rope_theta,
            "rope_parameters": self.rope_parameters or {"rope_type": "default", "rope_theta": self.rope_theta},
        }
        out["rope_parameters"] = {"rope_theta": self.rope_theta, **out["rope_parameters"]}
        out["num_key_value_heads"] = self.n_heads if self.n_kv_heads is None else self.n_kv_heads
        return out | ({key: getattr(self, name) for name, key in LAZY_KEYS} if lazy else {})


def _shapes(softmax: bool) -> dict[str, LazyModelArgs]:
    """The shapes of configs/models, and a small one."""
    own = dict(model_type="llama", normalizer="softmax", distance_bias_window=0, rope_theta=10000.0) if softmax else {}
    suffix = "-softmax" if softmax else ""
    large = dict(vocab_size=32000, n_layers=24, n_heads=16, n_kv_heads=16)
    tiny = dict(vocab_size=258, n_layers=4, n_heads=4, n_kv_heads=2, dim=64, head_dim=16, intermediate_size=192)
    tiny |= {} if softmax else dict(distance_bias_window=32)
    return {
        "tiny" + suffix: LazyModelArgs(**tiny | own),
        "340M" + suffix: LazyModelArgs(**large, dim=1024, head_dim=64, intermediate_size=2816, **own),
        "760M" + suffix: LazyModelArgs(**large, dim=1536, head_dim=96, intermediate_size=4096, **own),
    }


FLAVORS = {**_shapes(softmax=False), **_shapes(softmax=True), "folder": LazyModelArgs(from_folder=True)}
