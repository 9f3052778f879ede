// Python scripts that create small model folders of every family with transformers; they are appended to kMakeFolders
// (as_transformers.h). They cover every configuration that changes the computation and every format of files and
// configurations. transformers computes RoPE frequencies in fp32 even for a float64 model. With LongRoPE, the factors
// of the fastest rotating pair are therefore powers of two, which cause no rounding.
#pragma once

namespace lazy::testing {

// Python code that creates models of the Llama families, with every configuration that changes the computation. Sizes
// are intentionally not powers of two. The sequences of 150 tokens are longer than the attention windows and longer
// than the length from which scaled RoPE differs from plain RoPE.
inline constexpr char kLlamas[] = R"(
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
shape = dict(vocab_size=211, hidden_size=60, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
             intermediate_size=77, max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2)
rope = lambda kind, **more: dict(rope_parameters=dict(rope_type=kind, rope_theta=5e4, **more))
llama3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=40)
yarn = rope("yarn", factor=4.0, original_max_position_embeddings=32)
windows = dict(use_sliding_window=True, sliding_window=9)
alternating = ["sliding_attention", "full_attention", "sliding_attention"]
cases = {  # name: (configuration class, what it changes, dtype, shards)
    "llama": (LlamaConfig, dict(tie_word_embeddings=False), "float32", False),
    "llama_head_dim": (LlamaConfig, dict(head_dim=16, num_key_value_heads=6, tie_word_embeddings=True), )"
                                  R"("float16", False),
    "llama3": (LlamaConfig, dict(tie_word_embeddings=True, **llama3), "bfloat16", True),
    "llama_linear": (LlamaConfig, rope("linear", factor=3.0), "float32", False),
    "llama_dynamic": (LlamaConfig, rope("dynamic", factor=2.0), "float32", False),
    "llama_yarn": (LlamaConfig, yarn, "float32", False),
    "llama_yarn_mscale": (LlamaConfig, rope("yarn", factor=4.0, original_max_position_embeddings=32, mscale=1.0,
                                            mscale_all_dim=0.5, beta_fast=16.0, beta_slow=2.0, truncate=False),
                          "float32", False),
    "llama_longrope": (LlamaConfig, rope("longrope", factor=4.0, original_max_position_embeddings=64,
                                         short_factor=[1.0, 1.5, 1.2, 2.5, 3.0], long_factor=[2.0, 3.0, 9.0, 30, 64]),
                       "float32", False),
    "llama_bias": (LlamaConfig, dict(attention_bias=True), "float32", False),
    "mistral_window": (MistralConfig, dict(sliding_window=7), "float32", False),
    "mistral": (MistralConfig, dict(sliding_window=None, tie_word_embeddings=True), "bfloat16", False),
    "qwen2": (Qwen2Config, dict(tie_word_embeddings=True), "float16", False),
    "qwen2_window": (Qwen2Config, dict(max_window_layers=1, **windows), "float32", True),
    "qwen2_yarn": (Qwen2Config, yarn, "bfloat16", False),
    "qwen3": (Qwen3Config, dict(head_dim=22, tie_word_embeddings=True), "float32", False),
    "qwen3_bias": (Qwen3Config, dict(head_dim=14, attention_bias=True, num_key_value_heads=1), "float32", False),
    "qwen3_layers": (Qwen3Config, dict(head_dim=10, layer_types=alternating, **windows), "bfloat16", True),
}
for seed in (0, 1):
    for name, (kind, changes, dtype, sharded) in cases.items():
        make(f"{name}-{seed}", kind(**{**shape, **changes}), dtype, "60KB" if sharded else "5GB", length=150, seed=seed)
)";

// Python code that creates GPT-2 models. The sizes are intentionally not powers of two.
inline constexpr char kGpt2[] = R"(
from transformers import GPT2Config
shape = dict(vocab_size=211, n_embd=60, n_layer=3, n_head=6, n_positions=64, bos_token_id=1, eos_token_id=2,
             resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
for seed in (0, 1):
    make(f"tied-{seed}", GPT2Config(**shape), seed=seed)
    make(f"untied-{seed}", GPT2Config(**{**shape, "n_embd": 35, "n_head": 5}, n_inner=51, activation_function="gelu",
                                      tie_word_embeddings=False), seed=seed)
    make(f"sharded-{seed}", GPT2Config(**shape, n_inner=77, scale_attn_by_inverse_layer_idx=True), )"
                                R"("bfloat16", "60KB", seed=seed)
    make(f"unscaled-{seed}", GPT2Config(**shape, activation_function="relu", scale_attn_weights=False), )"
                                R"("float16", seed=seed)
    # As published in 2019: without the prefix, with buffers.
    where = make(f"published-{seed}", GPT2Config(**shape), seed=seed)
    tensors = {n.removeprefix("transformer."): t for n, t in take(where).items()}
    for n in range(3):
        tensors[f"h.{n}.attn.bias"] = torch.ones(64, 64).tril()[None, None]
        tensors[f"h.{n}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, where / "model.safetensors", {"format": "pt"})
)";

inline constexpr char kBloom[] = R"(
from transformers import BloomConfig
shape = dict(vocab_size=211, hidden_size=60, n_layer=3, n_head=6, hidden_dropout=0.0, attention_dropout=0.0))"
                                 R"(  # 6 is no power of 2
for seed in (0, 1):
    make(f"tied-{seed}", BloomConfig(**shape), seed=seed)
    make(f"untied-{seed}", BloomConfig(**{**shape, "hidden_size": 35, "n_head": 5}, )"
                                 R"(tie_word_embeddings=False), seed=seed)
    make(f"sharded-{seed}", BloomConfig(**{**shape, "n_head": 4}), "bfloat16", "60KB", seed=seed)
    # As published: without the prefix, older words in config.json.
    where = make(f"published-{seed}", BloomConfig(**shape), "float16", seed=seed)
    save_file({n.removeprefix("transformer."): t for n, t in take(where).items()}, )"
                                 R"(where / "model.safetensors", {"format": "pt"})
    config = json.loads((where / "config.json").read_text())
    config |= {"n_embed": config.pop("hidden_size"), "num_attention_heads": config.pop("n_head"), "seq_length": 2048}
    (where / "config.json").write_text(json.dumps(config))
)";

inline constexpr char kGptOss[] = R"(
from transformers import GptOssConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
yarn = dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
            original_max_position_embeddings=16)
shape = dict(vocab_size=211, hidden_size=60, num_hidden_layers=3, num_attention_heads=6, )"
                                  R"(num_key_value_heads=2, head_dim=14,
             intermediate_size=37, num_local_experts=5, num_experts_per_tok=2, )"
                                  R"(sliding_window=9, max_position_embeddings=64,
             rope_parameters=yarn, bos_token_id=1, eos_token_id=2, pad_token_id=None)
for seed in (0, 1):
    make(f"windows-{seed}", GptOssConfig(**shape), seed=seed)
    # The bound on gate and up is reached, and all experts are asked.
    make(f"bounds-{seed}", GptOssConfig(**{**shape, "num_experts_per_tok": 5, "num_key_value_heads": 6}, )"
                                  R"(swiglu_limit=0.4, swiglu_alpha=1.3),
         seed=seed)
    make(f"layers-{seed}", GptOssConfig(**shape, tie_word_embeddings=True, )"
                                  R"(layer_types=["full_attention"] + ["sliding_attention"] * 2),
         "bfloat16", "60KB", seed=seed)
    make(f"no-bias-{seed}", GptOssConfig(**shape, attention_bias=False), seed=seed)

    # As published: experts of 4 bits, whose values transformers unpacks for itself.
    where = make(f"mxfp4-{seed}", GptOssConfig(**{**shape, "hidden_size": 64, "intermediate_size": 96}), seed=seed)
    tensors = load_file(where / "model.safetensors")
    packed = {}
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj")) and "experts" in n]:
        experts, into, out = tensors[name].shape
        blocks = torch.randint(0, 256, (experts, out, into // 32, 16), dtype=torch.uint8)
        scales = torch.randint(120, 126, (experts, out, into // 32), dtype=torch.uint8)
        packed |= {name + "_blocks": blocks, name + "_scales": scales}
        tensors[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
    save_file(tensors, where / "model.safetensors", {"format": "pt"})
    record(where, load_file(where / "out.safetensors")["ids"])
    save_file({n: t for n, t in tensors.items() if n + "_blocks" not in packed} | packed, )"
                                  R"(where / "model.safetensors", {"format": "pt"})
    config = json.loads((where / "config.json").read_text())
    (where / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
)";

// Python code that creates GraniteSWA models. The attention weights that transformers' eager implementation returns do
// not include the weight of the sink. Therefore only logits and hidden states are compared.
inline constexpr char kGraniteSwas[] = R"(
from transformers import GraniteSWAConfig
everything = observe
def observe(model, ids):
    return {n: t for n, t in everything(model, ids).items() if not n.startswith("attention.")}
shape = dict(vocab_size=211, hidden_size=60, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
             intermediate_size=37, sliding_window=9, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
             embedding_multiplier=3.0, residual_multiplier=0.6, attention_multiplier=0.2, logits_scaling=4.0)
rope = dict(rope_type="default", rope_theta=5e4)
for seed in (0, 1):
    make(f"bases-{seed}", GraniteSWAConfig(**shape, rope_parameters=rope, layer_rope_theta=[0, 1e3, 1e5]), seed=seed)
    make(f"one-base-{seed}", GraniteSWAConfig(**{**shape, "num_key_value_heads": 6}, rope_parameters=rope, )"
                                       R"(attention_bias=True), seed=seed)
    make(f"layers-{seed}", GraniteSWAConfig(**shape, tie_word_embeddings=False, )"
                                       R"(layer_types=["sliding_attention", "full_attention", "full_attention"]),
         "bfloat16", "60KB", seed=seed)
)";

// Python code that creates SmolLM3 models with and without a window. Some layers have no RoPE; an interval or a list
// selects them.
inline constexpr char kSmolLm3s[] = R"(
from transformers import SmolLM3Config
shape = dict(vocab_size=211, hidden_size=60, num_hidden_layers=5, num_attention_heads=6, num_key_value_heads=2,
             intermediate_size=37, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=None)
llama3 = dict(rope_type="llama3", rope_theta=5e4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
for seed in (0, 1):
    make(f"interval-{seed}", SmolLM3Config(**shape), seed=seed)
    make(f"list-{seed}", SmolLM3Config(**{**shape, "num_key_value_heads": 6}, no_rope_layers=[0, 1, 1, 0, 1],
                                       rope_parameters=llama3, attention_bias=True), seed=seed)
    make(f"window-{seed}", SmolLM3Config(**shape, no_rope_layer_interval=2, use_sliding_window=True, sliding_window=9,
                                         tie_word_embeddings=False), "bfloat16", "60KB", seed=seed)
)";

inline constexpr char kOlmo2s[] = R"(
from transformers import Olmo2Config
shape = dict(vocab_size=211, hidden_size=60, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
             intermediate_size=37, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=None)
linear = dict(rope_type="linear", rope_theta=5e4, factor=3.0)
for seed in (0, 1):
    make(f"grouped-{seed}", Olmo2Config(**shape), "bfloat16", "60KB", seed=seed)
    make(f"biased-{seed}", Olmo2Config(**{**shape, "num_key_value_heads": None}, rope_parameters=linear,
                                       attention_bias=True, tie_word_embeddings=True), seed=seed)
)";

inline constexpr char kPhi3s[] = R"(
from transformers import Phi3Config
shape = dict(vocab_size=211, hidden_size=60, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
             intermediate_size=37, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=None)
partial = dict(rope_type="default", rope_theta=5e4, partial_rotary_factor=0.4)
for seed in (0, 1):
    make(f"grouped-{seed}", Phi3Config(**shape), seed=seed)
    make(f"window-{seed}", Phi3Config(**{**shape, "num_key_value_heads": None}, sliding_window=9,
                                      tie_word_embeddings=True), "bfloat16", "60KB", seed=seed)
    make(f"partial-{seed}", Phi3Config(**shape, rope_parameters=partial), seed=seed)
    # LongRoPE: texts of 40 tokens are below, at and above the original length. The last one rotates three quarters of
    # each head.
    factors = dict(short_factor=[1.0, 1.02, 1.5, 1.2, 2], long_factor=[2.0, 2.5, 9.0, 30, 64.5])
    for original, more in (41, {}), (40, dict(attention_factor=1.3)), (20, {}):
        make(f"longrope-{original}-{seed}", Phi3Config(**shape, original_max_position_embeddings=original,
             rope_parameters=dict(rope_type="longrope", rope_theta=1e4, **factors, **more)), seed=seed)
    factors = {name: [*numbers, 3.0] for name, numbers in factors.items()}
    make(f"longrope-partial-{seed}", Phi3Config(**{**shape, "hidden_size": 64, "num_attention_heads": 4},
         original_max_position_embeddings=25, partial_rotary_factor=0.75, tie_word_embeddings=True,
         rope_scaling=dict(type="yarn", **factors)), "bfloat16", seed=seed)
)";

// Python code that creates Gemma 2 models. They have a sliding window in every second layer (the default) or in layers
// given by a list of layer types, with and without softcaps of the attention scores and of the logits. The softcaps are
// low enough to change the results.
inline constexpr char kGemma2s[] = R"(
from transformers import Gemma2Config
shape = dict(vocab_size=211, hidden_size=60, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
             head_dim=14, intermediate_size=37, sliding_window=9, query_pre_attn_scalar=20, max_position_embeddings=64,
             bos_token_id=1, eos_token_id=2, pad_token_id=None)
linear = dict(rope_type="linear", rope_theta=5e4, factor=3.0)
for seed in (0, 1):
    make(f"caps-{seed}", Gemma2Config(**shape, attn_logit_softcapping=1.5, final_logit_softcapping=2.0), seed=seed)
    make(f"list-{seed}", Gemma2Config(**shape, rope_parameters=linear, attention_bias=True, attn_logit_softcapping=None,
                                      layer_types=["full_attention", "sliding_attention", "full_attention"]), seed=seed)
    make(f"uncapped-{seed}", Gemma2Config(**shape, attn_logit_softcapping=0.7, final_logit_softcapping=None,
                                          tie_word_embeddings=False), "bfloat16", "60KB", seed=seed)
)";

// Python code that creates Gemma 3 models with sliding windows in some layers: the default pattern with seven layers,
// and a pattern given by a list of layer types. Also covers scaled RoPE in the layers without a window, and logits with
// a softcap.
inline constexpr char kGemma3s[] = R"(
from transformers import Gemma3TextConfig
shape = dict(vocab_size=211, hidden_size=60, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
             head_dim=14, intermediate_size=37, sliding_window=9, query_pre_attn_scalar=20, max_position_embeddings=64,
             bos_token_id=1, eos_token_id=2, pad_token_id=None)
rope = dict(full_attention=dict(rope_type="linear", rope_theta=5e4, factor=3.0),
            sliding_attention=dict(rope_type="default", rope_theta=500.0))
for seed in (0, 1):
    make(f"pattern-{seed}", Gemma3TextConfig(**{**shape, "num_hidden_layers": 7}), seed=seed)
    make(f"list-{seed}", Gemma3TextConfig(**shape, rope_parameters=rope, attention_bias=True,
                                          layer_types=["full_attention", "sliding_attention", "full_attention"]),
         seed=seed)
    make(f"capped-{seed}", Gemma3TextConfig(**shape, sliding_window_pattern=2, final_logit_softcapping=2.0,
                                            tie_word_embeddings=False), "bfloat16", "60KB", seed=seed)
)";

}  // namespace lazy::testing
