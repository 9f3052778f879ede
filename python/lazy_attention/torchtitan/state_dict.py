"""LazyStateDictAdapter: tensor names of torchtitan's model and of the model folder, in both directions."""

from __future__ import annotations

import re
from typing import Any

from torchtitan.protocols.state_dict_adapter import StateDictAdapter

from .arguments import LazyModelArgs, fail

# torchtitan's name: (name in folders of LazyForCausalLM, name in folders of LlamaForCausalLM). None: no such tensor.
TOP_NAMES = {
    "tok_embeddings.weight": ("model.embeddings.weight", "model.embed_tokens.weight"),
    "norm.weight": ("model.norm.weight", "model.norm.weight"),
    "output.weight": ("lm_head.weight", "lm_head.weight"),
}
LAYER_NAMES = {
    "attention_norm.weight": ("attn_norm.weight", "input_layernorm.weight"),
    "attention.wq.weight": ("attn.q_proj.weight", "self_attn.q_proj.weight"),
    "attention.wk.weight": ("attn.k_proj.weight", "self_attn.k_proj.weight"),
    "attention.wv.weight": ("attn.v_proj.weight", "self_attn.v_proj.weight"),
    "attention.wo.weight": ("attn.o_proj.weight", "self_attn.o_proj.weight"),
    "attention.gate.weight": ("attn.gate_proj.weight", None),
    "per_head.distance_bias": ("attn.learnable_bias_diagonals", None),
    "per_head.tau": ("attn.softmax_offset", None),
    "per_head.sink": ("attn.sinks", None),
    "ffn_norm.weight": ("mlp_norm.weight", "post_attention_layernorm.weight"),
    "feed_forward.w1.weight": ("mlp.gate_proj.weight", "mlp.gate_proj.weight"),
    "feed_forward.w2.weight": ("mlp.down_proj.weight", "mlp.down_proj.weight"),
    "feed_forward.w3.weight": ("mlp.up_proj.weight", "mlp.up_proj.weight"),
}


class LazyStateDictAdapter(StateDictAdapter):
    """Only names differ: RoPE rotates the same pairs in both layouts, so no weight is permuted."""

    def __init__(self, model_args: LazyModelArgs, hf_assets_path: str | None):
        super().__init__(model_args, hf_assets_path)
        layout = ("lazy_attention", "llama").index(model_args.model_type)
        layers = [(f"layers.{i}.", f"model.layers.{i}.") for i in range(model_args.n_layers)]
        names = {ours: folder[layout] for ours, folder in TOP_NAMES.items()}
        for ours, folder in LAYER_NAMES.items():
            if folder[layout]:
                names |= {prefix + ours: folder_prefix + folder[layout] for prefix, folder_prefix in layers}
        self.names = names
        self.own_names = {folder: ours for ours, folder in names.items()}

    def to_hf(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        return _rename(state_dict, self.names)

    def from_hf(self, hf_state_dict: dict[str, Any]) -> dict[str, Any]:
        # Folders of older transformers versions contain RoPE's frequencies, which are not parameters.
        kept = {name: t for name, t in hf_state_dict.items() if not re.search(r"rotary_emb\.inv_freq$", name)}
        return _rename(kept, self.own_names)


def _rename(tensors: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    unknown = sorted(tensors.keys() - names.keys())
    if unknown:
        fail(f"state dict: unexpected tensors: {', '.join(unknown[:5])}")
    return {names[name]: tensor for name, tensor in tensors.items()}
