"""config.json with changed keys: our logits equal those of transformers, or the folder is refused with one line.

For each model_type that both programs read, the test builds tiny models, changes, removes or adds one to three keys of
their config.json and loads each variant in both programs. A variant that transformers does not load is skipped.

    LAZY_CONFIG_VARIANTS=200 .venv/bin/python tests/run_pytest.py tests/python/test_config_keys.py -s   # the full run

LAZY_CONFIG_VARIANTS (6) is the number of variants per family, LAZY_CONFIG_SEED (1) selects them.
"""

import collections
import contextlib
import copy
import json
import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")
import lazy_attention.hf  # noqa: E402, F401 - registers lazy_attention
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

pytestmark = pytest.mark.slow

VARIANTS = int(os.environ.get("LAZY_CONFIG_VARIANTS", "6"))
SEED = int(os.environ.get("LAZY_CONFIG_SEED", "1"))
LENGTH = 24  # of the sequences; more than max_position_embeddings of the families with RoPE
TOLERANCE = 2e-4  # of the largest logit

# Norms have a large epsilon so that another one shows in the logits.
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

# The configurations of each family whose keys are changed; each of them must itself have equal logits.
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
# Values to try for keys by name; other keys get values by type.
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
    "normalizer": ["softmax", "elastic", "sigmoid", "softmax_sink", "sparsemax", "entmax15", "softpick", "relu"],
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
# Keys that a configuration class does not declare: those of other families, of older versions, and common mistakes.
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
# Keys that cannot change the logits; they are changed less often.
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


# Names of flash-linear-attention, which are read in these families if the name of transformers is absent: the folder is
# then one of flash-linear-attention, and transformers computes another function.
FLA_NAMES = {
    "mamba2": {"norm_eps": "layer_norm_epsilon", "rms_norm_eps": "layer_norm_epsilon"},
    "lazy_attention": {
        "norm_eps": "rms_norm_eps",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
    },
}


def rope_value(chance, old):
    """A RoPE dictionary: a changed one of the folder, or another one."""
    if isinstance(old, dict) and "full_attention" in old and chance.random() < 0.8:  # one for each type of layer
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
    """The configuration with one to three changed keys, and the changes as text."""
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


class Unreadable(Exception):
    """transformers does not load the folder, or computes nothing definite from it."""


def randomized(model):
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.3 + p if p.dim() == 1 else torch.randn_like(p) * 0.15)
    return model.eval()


def write_weights(folder):
    """Random weights of the shapes that config.json asks for."""
    torch.manual_seed(3)
    model = randomized(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32))
    with tempfile.TemporaryDirectory() as other:
        model.save_pretrained(other)
        shutil.move(Path(other) / "model.safetensors", folder / "model.safetensors")


def reference_logits(folder, ids):
    """What transformers computes; new weights where the present ones do not fit."""
    lazy = '"lazy_attention"' in (folder / "config.json").read_text()
    for attempt in range(2):
        try:
            model, found = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation="lazy" if lazy else "eager",
                output_loading_info=True,
            )
            fits = not any(found.get(kind) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
            if fits:
                break
        except Exception as error:  # noqa: BLE001 - whatever it is, transformers does not load this folder
            fits, reason = False, repr(error)
        else:
            reason = f"the weights do not fit: {found}"
        if attempt == 0:
            try:
                write_weights(folder)
            except Exception as error:  # noqa: BLE001
                raise Unreadable(repr(error)) from error
    if not fits:
        raise Unreadable(reason)
    if hasattr(model, "set_experts_implementation"):
        with contextlib.suppress(Exception):
            model.set_experts_implementation("eager")
    try:
        with torch.no_grad():
            out = model.eval()(ids)
    except Exception as error:  # noqa: BLE001
        raise Unreadable(repr(error)) from error
    logits = out[0] if isinstance(out, tuple) else out.logits
    if logits.shape != (*ids.shape, model.config.vocab_size) or not torch.isfinite(logits).all():
        raise Unreadable("the logits are not finite")
    return logits


class Ours:
    """The process that computes logits of many folders."""

    def __init__(self, program):
        self.process = subprocess.Popen([program, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, folder, ids):
        """(logits, None) or (None, the message of the refusal)."""
        out = folder / "ours.out"
        out.unlink(missing_ok=True)
        self.process.stdin.write(f"{folder}\t{ids}\t{out}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise AssertionError(f"the process ended with {self.process.wait()}")
        kind, _, message = answer.strip().partition(" ")
        if kind == "logits":
            return load_file(out)["logits"], None
        if kind != "refused" or "\\n" in message:
            raise AssertionError(f"expected an error of one line: {answer}")
        return None, message

    def close(self):
        self.process.stdin.close()
        assert self.process.wait() == 0


@pytest.fixture(scope="module")
def ours(built_file):
    process = Ours(built_file("LAZY_TEST_MODELS"))
    yield process
    process.close()


@pytest.fixture(scope="module")
def ids(tmp_path_factory):
    torch.manual_seed(5)
    path = tmp_path_factory.mktemp("ids") / "ids.safetensors"
    tensor = torch.randint(0, 50, (2, LENGTH))
    save_file({"ids": tensor}, path)
    return tensor, path


@pytest.fixture(autouse=True)
def quiet():
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    yield
    transformers.logging.set_verbosity(before)


def write_config(folder, config):
    (folder / "config.json").write_text(json.dumps(config))


def base_folder(folder, family, given):
    """A folder as transformers writes it."""
    torch.manual_seed(3)
    config = AutoConfig.for_model(family, **copy.deepcopy(given))
    randomized(AutoModelForCausalLM.from_config(config)).save_pretrained(folder)
    return folder, json.loads((folder / "config.json").read_text())


def difference(ours, folder, ids):
    """("equal" | "different" | "refused" | "skipped", text) of one folder."""
    try:
        theirs = reference_logits(folder, ids[0])
    except Unreadable as reason:
        ours(folder, ids[1])  # must not crash
        return "skipped", str(reason)
    found, message = ours(folder, ids[1])
    if found is None:
        named = str(folder) in message
        return "refused" if named else "different", message.replace(str(folder), "FOLDER")
    distance = (found - theirs).abs().max().item() / theirs.abs().max().item()
    return ("equal" if distance < TOLERANCE else "different"), f"relative difference {distance:.1e}"


YARN = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 5000.0}
# Changes that once gave other logits, with the result that is expected now; ABSENT removes a key.
CASES = [
    ("llama", "refused", {"is_causal": False}),
    ("llama", "equal", {"rope_parameters": YARN, "max_position_embeddings": ABSENT}),
    ("llama", "equal", {"rope_parameters": {**YARN, "original_max_position_embeddings": 8, "truncate": None}}),
    ("llama", "refused", {"rope_parameters": {**YARN, "original_max_position_embeddings": 8, "attention_factor": 0}}),
    ("llama", "equal", {"rope_parameters": ROPES[7], "original_max_position_embeddings": 64}),
    ("phi3", "equal", {"rope_scaling": {"type": "yarn", "short_factor": [1.5] * 4, "long_factor": [4, 3, 2, 1]}}),
    ("phi3", "equal", {"auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}}),
    ("llama", "equal", {"norm_eps": 0.2, "rms_norm_eps": ABSENT}),
    ("llama", "equal", {"num_kv_heads": 4}),
    ("mistral", "refused", {"layer_types": SLIDING}),
    ("mistral", "refused", {"layer_types": SLIDING[1:] * 2}),
    ("gpt2", "refused", {"num_attention_heads": 8}),
    ("gpt2", "equal", {"activation_function": "gelu_python"}),
    ("gpt2", "equal", {"activation_function": "gelu_accurate"}),
    ("bloom", "refused", {"num_attention_heads": 8}),
    ("gpt_oss", "equal", {"rope_scaling": {}, "rope_parameters": ABSENT}),
    ("gpt_oss", "equal", {"experts_per_token": 1, "num_experts_per_tok": ABSENT}),
    ("granite_swa", "equal", {"hidden_act": "swish"}),
    ("lazy_attention", "equal", {"rope_parameters": ABSENT}),
    ("mamba2", "refused", {"rescale_prenorm_residual": True}),
    ("mamba2", "refused", {"norm_eps": 0.2}),
]


@pytest.mark.parametrize("family, expected, changes", CASES, ids=[f"{f}-{'-'.join(c)}" for f, _, c in CASES])
def test_changes_that_once_gave_other_logits(family, expected, changes, ours, ids, tmp_path):
    folder, config = base_folder(tmp_path / "base", family, FAMILIES[family][0])
    config = {key: value for key, value in {**config, **changes}.items() if value is not ABSENT}
    write_config(folder, config)
    assert difference(ours, folder, ids)[0] == expected, difference(ours, folder, ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_irrelevant_keys_are_accepted(family, ours, ids, tmp_path):
    folder, config = base_folder(tmp_path / "base", family, FAMILIES[family][0])
    for key in set(config) & set(IRRELEVANT):
        config[key] = IRRELEVANT[key][-1]
    write_config(folder, config)
    assert difference(ours, folder, ids)[0] == "equal", difference(ours, folder, ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_changed_configurations(family, ours, ids, tmp_path):
    bases = []
    for n, given in enumerate(FAMILIES[family]):
        bases.append(base_folder(tmp_path / f"base{n}", family, given))
        assert difference(ours, bases[-1][0], ids)[0] == "equal", (given, difference(ours, bases[-1][0], ids))
    chance = random.Random(f"{family} {SEED}")
    count, refusals, silent = collections.Counter(), collections.defaultdict(list), []
    for n in range(VARIANTS):
        source, config = bases[n % len(bases)]
        config, changes = variant(chance, config)
        folder = tmp_path / "variant"
        shutil.copytree(source, folder)
        write_config(folder, config)
        try:
            result, text = difference(ours, folder, ids)
        except AssertionError as error:
            result, text = "different", str(error)
        shutil.rmtree(folder)
        count[result] += 1
        if result == "different":
            silent.append(f"base {n % len(bases)}, {changes}: {text}")
        if result == "refused":
            refusals[text].append(changes)
        if os.environ.get("LAZY_CONFIG_VERBOSE") and result == "skipped":
            print(f"skipped {changes}: {text[:150]}")
    print(f"\n{family}: {VARIANTS} variants, {dict(count)}")
    for text, changes in sorted(refusals.items()):
        print(f"  {len(changes)} x {text}   [{changes[0]}]")
    if silent:
        pytest.fail(f"{len(silent)} variants of {family} have other logits:\n" + "\n".join(silent), pytrace=False)
