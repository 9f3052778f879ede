"""Tiny models of the families that transformers and `lazy` both support, and random changes of their config.json.

test_config_keys.py compares the logits of the changed folders.
"""

import copy
import json

# The epsilon of the norms is large, so that a changed epsilon is visible in the logits.
DECODER = dict(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=16,
    rms_norm_eps=0.04,
    bos_token_id=1,
    eos_token_id=2,
)
GPT2 = dict(vocab_size=61, n_positions=32, n_embd=32, n_layer=2, n_head=4, layer_norm_epsilon=0.04)
BLOOM = dict(vocab_size=61, hidden_size=32, n_layer=2, n_head=4, layer_norm_epsilon=0.04)
MAMBA2 = dict(
    vocab_size=61,
    hidden_size=32,
    num_hidden_layers=2,
    num_heads=8,
    head_dim=8,
    state_size=8,
    n_groups=1,
    chunk_size=8,
    layer_norm_epsilon=0.04,
)
ROPES = [
    {"rope_type": "default", "rope_theta": 5000.0},
    {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
    {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 5000.0},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8, "rope_theta": 5000.0},
    {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 8,
        "rope_theta": 5000.0,
        "beta_fast": 4.0,
        "beta_slow": 0.5,
        "attention_factor": 1.3,
        "truncate": False,
    },
    {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.4, "rope_theta": 5000.0},
    {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8,
        "rope_theta": 5000.0,
    },
    {
        "rope_type": "longrope",
        "factor": 4.0,
        "original_max_position_embeddings": 8,
        "rope_theta": 5000.0,
        "short_factor": [1.0, 1.1, 1.5, 2.0],
        "long_factor": [1.2, 4.0, 2.5, 30.0],
    },
]
PHI3_LONGROPE = {"rope_type": "longrope", "rope_theta": 5000.0, "partial_rotary_factor": 0.75}
PHI3_LONGROPE |= {"short_factor": [1.0, 1.5, 2.0], "long_factor": [1.2, 4.0, 30.0], "attention_factor": 1.2}
SLIDING = ["sliding_attention", "full_attention"]
GEMMA = {**DECODER, "sliding_window": 6, "query_pre_attn_scalar": 20}
LAZY = {**DECODER, "distance_bias_window": 10, "distance_bias_init_std": 0.5}

# Base configurations of each family, whose keys the tests change. Without changes, the logits of transformers and
# `lazy` must be equal.
FAMILIES = {
    "llama": [DECODER, *({**DECODER, "rope_parameters": rope} for rope in ROPES), {**DECODER, "attention_bias": True}],
    "mistral": [
        {**DECODER, "sliding_window": 6},
        {**DECODER, "sliding_window": None},
        {**DECODER, "sliding_window": 6, "rope_parameters": ROPES[3]},
    ],
    "qwen2": [
        {**DECODER, "head_dim": 8},
        {**DECODER, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
        {
            **DECODER,
            "use_sliding_window": True,
            "sliding_window": 6,
            "layer_types": SLIDING,
            "tie_word_embeddings": True,
        },
        {**DECODER, "rope_parameters": ROPES[4]},
    ],
    "qwen3": [
        {**DECODER, "head_dim": 16},
        {**DECODER, "attention_bias": True, "rope_parameters": ROPES[2]},
        {
            **DECODER,
            "use_sliding_window": True,
            "sliding_window": 6,
            "layer_types": SLIDING,
            "tie_word_embeddings": True,
        },
    ],
    "gpt2": [
        GPT2,
        {**GPT2, "scale_attn_by_inverse_layer_idx": True, "n_inner": 40},
        {**GPT2, "activation_function": "relu", "scale_attn_weights": False, "tie_word_embeddings": False},
    ],
    "bloom": [BLOOM, {**BLOOM, "tie_word_embeddings": False}],
    "gpt_oss": [
        {**DECODER, "sliding_window": 6, "num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": rope}
        for rope in (None, ROPES[0], ROPES[4])
    ],
    "granite_swa": [
        {**DECODER, "sliding_window": 6, "layer_types": SLIDING},
        {**DECODER, "sliding_window": 6, "layer_rope_theta": [0.0, 5000.0], "attention_bias": True},
        {
            **DECODER,
            "sliding_window": 6,
            "rope_parameters": ROPES[3],
            "tie_word_embeddings": False,
            "embedding_multiplier": 1.5,
            "residual_multiplier": 0.6,
            "attention_multiplier": 0.4,
            "logits_scaling": 2.0,
        },
    ],
    "smollm3": [
        {**DECODER, "no_rope_layer_interval": 2, "pad_token_id": None},
        {**DECODER, "no_rope_layers": [0, 1], "attention_bias": True, "pad_token_id": None},
        {
            **DECODER,
            "no_rope_layers": [1, 0],
            "use_sliding_window": True,
            "sliding_window": 6,
            "rope_parameters": ROPES[3],
            "tie_word_embeddings": False,
            "pad_token_id": None,
        },
    ],
    "olmo2": [
        {**DECODER, "pad_token_id": None},
        {**DECODER, "num_key_value_heads": 4, "attention_bias": True, "pad_token_id": None},
        {**DECODER, "rope_parameters": ROPES[6], "tie_word_embeddings": True, "pad_token_id": None},
    ],
    "phi3": [
        {**DECODER, "pad_token_id": None},
        {**DECODER, "sliding_window": 6, "tie_word_embeddings": True, "pad_token_id": None},
        {**DECODER, "rope_parameters": {**ROPES[0], "partial_rotary_factor": 0.5}, "pad_token_id": None},
        {**DECODER, "rope_parameters": PHI3_LONGROPE, "pad_token_id": None},
        {
            **DECODER,
            "original_max_position_embeddings": 8,
            "rope_parameters": {**ROPES[7], "partial_rotary_factor": 1.0},
            "pad_token_id": None,
        },
    ],
    "gemma2": [
        {**GEMMA, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0},
        {**GEMMA, "layer_types": SLIDING[::-1], "rope_parameters": ROPES[1], "attn_logit_softcapping": None},
        {**GEMMA, "attention_bias": True, "final_logit_softcapping": None, "tie_word_embeddings": False},
    ],
    "gemma3_text": [
        {**GEMMA, "sliding_window_pattern": 2},
        {**GEMMA, "layer_types": SLIDING, "rope_parameters": {"full_attention": ROPES[1]}},
        {
            **GEMMA,
            "layer_types": SLIDING[::-1],
            "rope_parameters": {"full_attention": ROPES[3], "sliding_attention": {"rope_theta": 500.0}},
            "attention_bias": True,
            "tie_word_embeddings": False,
            "final_logit_softcapping": 2.0,
        },
    ],
    "lazy_attention": [
        LAZY,
        {**LAZY, "sliding_window": 6, "offset": "constant", "rope_parameters": ROPES[0]},
        {**LAZY, "normalizer": "softmax", "attention_gate": "element", "tie_word_embeddings": True},
        {**LAZY, "normalizer": "softmax_sink", "attention_gate": "head", "distance_bias_window": 0},
        {**LAZY, "normalizer": "elastic_sink", "sink_init": 0.7},
    ],
    "mamba2": [
        MAMBA2,
        {**MAMBA2, "n_groups": 2, "tie_word_embeddings": True},
        {**MAMBA2, "time_step_limit": [0.1, 0.6]},
    ],
}

ACTIVATIONS = (
    "silu swish gelu gelu_new gelu_fast gelu_pytorch_tanh gelu_python gelu_python_tanh gelu_accurate gelu_10 "
    "quick_gelu relu relu2 relu6 leaky_relu laplace linear mish sigmoid tanh"
).split()
# Key -> values that the tests try for it. For other keys, the tests choose values according to the type of the old
# value.
VALUES = {
    "hidden_act": ACTIVATIONS,
    "activation_function": ACTIVATIONS,
    "layer_types": [SLIDING, SLIDING[::-1], SLIDING[:1] * 2, SLIDING[1:] * 2, SLIDING[:1], ["chunked_attention"] * 2],
    "sliding_window": [None, -1, 0, 1, 3, 6, 100, "6"],
    "max_window_layers": [-1, 0, 1, 2, 28],
    "layer_rope_theta": [None, [0, 5000], [5000.0, 5000.0], [500.0, 0.0], [0, 0], [500.0], [-10.0, 500.0]],
    "no_rope_layers": [None, [0, 1], [1, 0], [1, 1], [0, 0], [1], [0, 1, 1], [2, 0], [True, False], [0.0, 1.0]],
    "no_rope_layer_interval": [None, -2, 0, 1, 2, 4],
    "time_step_limit": [[0.0, 0.5], [0.2, float("inf")], [0.0, float("inf")], [0.5, 0.2], [0.1], 0.1],
    "time_step_rank": [1, 7, "auto"],
    "dtype": ["bfloat16", "float16", "float64", "float32"],
    "torch_dtype": ["bfloat16", "float16", "float64", "float32"],
    "head_dim": [None, 4, 8, 16, 6],
    "normalizer": [
        "softmax",
        "elastic",
        "sigmoid",
        "softmax_sink",
        "sparsemax",
        "entmax15",
        "softpick",
        "elastic_sink",
        "relu",
    ],
    "offset": ["per_visible", "constant", "x"],
    "offset_init": [-1.0, -0.1, 0],
    "sink_init": [0, 0.7, -1],
    "attention_gate": ["none", "head", "element", "x"],
    "distance_bias_window": [0, 1, 10, 40],
    "positions": ["rope", "none", "alibi", "x"],
    "tokenizer_fingerprint": ["00000000000000ff", None],
    "bos_token_id": [None, 0, 1, 60],
    "eos_token_id": [None, 0, 2, [2, 3]],
    "pad_token_id": [None, 0, 5, 60, -1],
    "problem_type": [None, "regression"],
    "id2label": [{"0": "a", "1": "b"}],
    "label2id": [{"a": 0, "b": 1}],
    "architectures": [None, ["LlamaModel"], ["GPT2LMHeadModel"]],
    "transformers_version": ["4.40.0", "5.0.0", None],
    "n_embd": [16, 32, 64],
    "vocab_size": [61, 64, 50],
    "rms_norm_eps": [1e-6, 1e-5, 0.01, 0.2, 0, 1],
    "layer_norm_epsilon": [1e-6, 1e-5, 0.01, 0.2, 0, 1],
    "norm_eps": [1e-6, 0.2],
    "n_inner": [None, 40, 128, 0],
    "original_max_position_embeddings": [4, 8, 16, 32],
    "rope_theta": [100.0, 10000, 5000.0, 0, 1, "10000"],
    "partial_rotary_factor": [0.5, 1, 1.0, 0.25],
    "n_embed": [32, 16, None],
    "hidden_size": [32, 16, 64],
    "max_position_embeddings": [8, 16, 24, 32, 64],
    "n_positions": [24, 32, 40, 16],
    "num_hidden_layers": [1, 2, 3],
    "n_layer": [1, 2, 3],
    "num_attention_heads": [1, 2, 4, 8],
    "num_key_value_heads": [None, 1, 2, 4],
    "num_heads": [2, 4, 8],
    "num_kv_heads": [1, 4],
    "n_head": [1, 2, 4, 8],
    "is_causal": [True, False, None],
    "per_layer_config": [{}, {"1": {"intermediate_size": 40}}, {"1": {"rms_norm_eps": 0.2}}, {"0": {"skip": ["mlp"]}}],
    "auto_map": [
        {"AutoModelForCausalLM": "modeling_x.X"},
        {"AutoConfig": "x.Phi3Config"},
        {"AutoTokenizer": ["tokenization_x.X", None]},
    ],
    "quantization_config": [None, {}, {"quant_method": "fp8"}, {"bits": 4, "quant_method": "gptq"}],
    "attention_chunk_size": [4, None],
    "transformers_weights": ["other.safetensors", "model.safetensors"],
    "fusion_config": [{}, None],
    "kv_sharing_modes": [["own", "reuse"]],
    "pruned_heads": [{}, {"0": [1]}],
    "experts_per_token": [1, 2, 4],
    "num_experts": [4, 2],
    "attn_logit_softcapping": [30.0, 1.0, 2, 0, -1.0, None],
    "final_logit_softcapping": [None, 0.5, 2.0, 0, -2.0, 30, "30"],
    "query_pre_attn_scalar": [None, 1, 8, 20, 256, 0, -4, 2.5],
    "sliding_window_pattern": [None, 1, 2, 3, 0, -2, 1.0],
    "use_bidirectional_attention": [None, False, True],
    "rope_local_base_freq": [None, 100.0, 10000, 500.0, 0, 1],
    "hidden_activation": ACTIVATIONS,
    "rope_scaling": "rope",
    "rope_parameters": "rope",
}
# Keys that a configuration class does not declare: keys of other families or of older versions, and common mistakes.
EXTRA = (
    "is_causal per_layer_config auto_map quantization_config attention_chunk_size transformers_weights "
    "fusion_config kv_sharing_modes pruned_heads torch_dtype rope_theta rope_scaling rope_parameters "
    "partial_rotary_factor original_max_position_embeddings layer_types sliding_window use_sliding_window "
    "max_window_layers head_dim mlp_bias attention_bias qkv_bias use_qk_norm hidden_act norm_eps num_heads "
    "num_kv_heads hidden_size num_hidden_layers num_attention_heads num_key_value_heads max_position_embeddings "
    "n_embed n_positions n_inner experts_per_token num_experts attn_logit_softcapping final_logit_softcapping "
    "logits_scaling residual_multiplier embedding_multiplier attention_multiplier logit_scale "
    "use_parallel_residual rotary_pct pretraining_tp tie_word_embeddings is_decoder is_encoder_decoder "
    "add_cross_attention tie_encoder_decoder scale_embedding seq_length n_ctx scale_attn_by_inverse_layer_idx "
    "slow_but_exact layer_norm_epsilon rms_norm_eps query_pre_attn_scalar sliding_window_pattern "
    "use_bidirectional_attention rope_local_base_freq hidden_activation"
).split()
for key, tries in dict(
    logits_scaling=2.0, residual_multiplier=0.5, embedding_multiplier=2.0, attention_multiplier=0.2
).items():
    VALUES.setdefault(key, [tries, 0, 1, 1.0, 3])
# Keys that cannot affect the logits. The tests change these keys less often.
IRRELEVANT = dict(
    use_cache=[True, False],
    output_attentions=[True, False],
    output_hidden_states=[True, False],
    return_dict=[True, False],
    chunk_size_feed_forward=[0, 4],
    id2label=VALUES["id2label"],
    label2id=VALUES["label2id"],
    problem_type=VALUES["problem_type"],
    transformers_version=VALUES["transformers_version"],
    architectures=VALUES["architectures"],
    dtype=VALUES["dtype"],
    torch_dtype=VALUES["torch_dtype"],
    initializer_range=[0.0, 0.3],
    attention_dropout=[0.0, 0.5],
    hidden_dropout=[0.0, 0.5],
    attn_pdrop=[0.0, 0.5],
    embd_pdrop=[0.0, 0.5],
    resid_pdrop=[0.0, 0.5],
    summary_type=["cls_index", "last"],
    summary_use_proj=[True, False],
    summary_first_dropout=[0.0, 0.5],
    summary_proj_to_labels=[True, False],
    summary_activation=[None, "tanh"],
    pad_token_id=VALUES["pad_token_id"],
    bos_token_id=VALUES["bos_token_id"],
    eos_token_id=VALUES["eos_token_id"],
    _name_or_path=["", "x"],
    is_encoder_decoder=[False],
    output_router_logits=[True, False],
    router_aux_loss_coef=[0.0, 0.5],
    pretraining_tp=[1],
    slow_but_exact=[False],
    reorder_and_upcast_attn=[True, False],
    residual_in_fp32=[True, False],
    time_step_rank=VALUES["time_step_rank"],
    time_step_min=[0.1],
    time_step_max=[0.2],
    time_step_floor=[0.1],
    chunk_size=[4, 8, 64],
)
ABSENT = object()


# Key names of flash-linear-attention, by family. If a key has such a name instead of the name in transformers, `lazy`
# treats the folder as a model of flash-linear-attention, for which transformers computes different logits.
FLA_NAMES = {
    "mamba2": {"norm_eps": "layer_norm_epsilon", "rms_norm_eps": "layer_norm_epsilon"},
    "lazy_attention": {
        "norm_eps": "rms_norm_eps",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
    },
}


def rope_value(chance, old):
    """Returns a dictionary of RoPE parameters: either the old one with random changes, or a new random one."""
    if isinstance(old, dict) and "full_attention" in old and chance.random() < 0.8:  # one entry per layer type
        kind = chance.choice(sorted(old))
        return {**old, kind: rope_value(chance, old[kind])}
    if isinstance(old, dict) and old and chance.random() < 0.5:
        rope = dict(old)
        for key in chance.sample(sorted(rope), chance.randint(1, min(2, len(rope)))):
            kind = chance.randrange(4)
            if kind == 0:
                del rope[key]
            elif kind == 1:
                rope[key] = None
            elif isinstance(rope[key], bool):
                rope[key] = not rope[key]
            elif isinstance(rope[key], (int, float)):
                rope[key] = chance.choice([rope[key] * 2, rope[key] / 2, 0, -rope[key], int(rope[key])])
            elif isinstance(rope[key], list):
                others = [rope[key][::-1], rope[key][1:], [], [0.5] * len(rope[key]), [0] * len(rope[key]), ["1"], 2.0]
                rope[key] = chance.choice(others)
            else:
                rope["rope_type"] = chance.choice(
                    ["default", "linear", "dynamic", "yarn", "su", "llama3", "longrope", "x"]
                )
        return rope
    rope = dict(chance.choice(ROPES))
    kind = chance.randrange(8)
    if kind == 0:
        return chance.choice([None, {}, {"full_attention": rope, "sliding_attention": rope}])
    if kind == 1:
        rope = {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    if kind == 2:
        rope["partial_rotary_factor"] = chance.choice([0.5, 1.0])
    if kind == 3:
        rope["type"] = rope.pop("rope_type")
    if kind == 4:
        rope["type"] = "linear"
    if kind == 5:
        rope.pop("rope_theta")
    if kind == 6 and rope["rope_type"] == "yarn":
        rope[chance.choice(["truncate", "attention_factor", "beta_fast", "beta_slow", "mscale"])] = chance.choice(
            [None, 0, 1.5, False, True]
        )
    return rope


def changed(chance, key, old):
    kind = chance.random()
    if old is not ABSENT and kind < 0.2:
        return ABSENT
    if kind < 0.28:
        return None
    tries = VALUES.get(key, IRRELEVANT.get(key))
    if tries == "rope":
        return rope_value(chance, old)
    if tries:
        return chance.choice(tries)
    if isinstance(old, bool) or old is ABSENT:
        return not old if isinstance(old, bool) else chance.choice([True, False, 1, 0.5])
    if isinstance(old, int):
        return chance.choice([0, 1, old * 2, old // 2, -1, old + 1])
    if isinstance(old, float):
        return chance.choice([old * 2, old / 2, 0.0, 0.3, int(old)])
    return chance.choice([True, False, 3, "x"])


def variant(chance, config):
    """Returns the configuration with one to three changed keys, and a description of the changes."""
    config, text = copy.deepcopy(config), []
    declared = sorted(set(config) - {"model_type", *IRRELEVANT})
    for _ in range(chance.choice([1, 1, 2, 3])):
        kind = chance.random()
        if kind < 0.15 and "rope_parameters" in config:
            key = "rope_parameters"
        elif kind < 0.25:
            key = chance.choice(sorted(set(config) & set(IRRELEVANT)))
        else:
            key = chance.choice(declared if kind < 0.65 else EXTRA)
        value = changed(chance, key, config.get(key, ABSENT))
        if value is ABSENT:
            config.pop(key, None)
            text.append(f"no {key}")
        else:
            config[key] = value
            text.append(f"{key}={json.dumps(value)}")
    for fla, own in FLA_NAMES.get(config["model_type"], {}).items():
        if config.get(own) is None:
            config.pop(fla, None)
    return config, ", ".join(text)
