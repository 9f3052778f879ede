// The shape and mechanism of a decoder: what `[model]` in a configuration and `config.json` in a model folder say.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/adaptive_vocabulary.h"
#include "ops/rope_frequencies.h"

namespace lazy {

class Config;

// Sizes of mixers other than attention, [mixer] in a configuration. 0: what follows from hidden_size (SPEC section 1).
struct MixerConfig {
  int64_t heads = 0, key_dim = 0, value_dim = 0;  // key_dim and value_dim of each head
  int64_t conv_size = 4;                          // taps of the depthwise causal convolution, 0: none
  int64_t chunk = 0;                              // tokens that the training form takes at a time
  int64_t state_size = 128, groups = 1;           // of Mamba2: N, and how many B and C there are
  bool gate = true;                               // the output is gated
  // Titans (decision A9): layers of the memory, their expansion, learned tokens before the text, tokens a segment.
  int64_t memory_depth = 2, memory_expansion = 4, persistent = 4, segment = 64;
  bool memory_norm = true;  // the memory is a residual around a normalized MLP (titans/neural_memory.h)
};

// Pre-norm decoder of SPEC section 1 (Transformer++): RMSNorm, attention with RoPE, SwiGLU.
// With normalizer "elastic" and distance_bias_window > 0 it is Lazy Attention (arXiv 2601.00919, equations 4 and 5).
// Softmax models may also have what the families of Llama add to it: biases, norms of queries and keys, layers without
// the window. The families in model/families/ change more: the norm, the MLP, where the norms stand.
struct ModelConfig {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 1024;
  int64_t num_layers = 24;
  int64_t num_heads = 16;
  int64_t num_kv_heads = 16;
  int64_t head_dim = 64;
  int64_t intermediate_size = 0;  // 0: ceil256(int(hidden_size * hidden_ratio * 2 / 3))
  double hidden_ratio = 4;
  bool tie_embeddings = false;
  AdaptiveVocabulary adaptive;  // instead of one table and one head
  double norm_eps = 1e-6;
  // rope, none, learned, sinusoidal, alibi or transformer_xl. A distance bias comes on top of any. rope with rope_base
  // 0 is none.
  std::string positions = "rope";
  double rope_base = 1e4;            // decision A6: Lazy defaults to 1.5e5
  double partial_rotary_factor = 1;  // of every head's dimensions, the first ones, that RoPE turns
  bool rope_interleaved = false;     // RoPE turns the pairs (2n, 2n + 1), not (n, n + half)
  bool alibi_trainable = false;      // ALiBi's slopes are trained from their usual values
  // transformer_xl: tokens of a segment (0: the text is one), tokens before it that it remembers, and the distance
  // beyond which all are alike (0: none).
  int64_t segment_length = 0, memory_length = 0, clamp_length = 0;
  bool shared_relative_biases = false;  // its u and v are one for all layers
  ops::RopeScaling rope_scaling;        // the operator's types and "dynamic", see rope_at
  int64_t max_length = 4096;            // training length
  std::string normalizer = "softmax";   // "softmax", "elastic", ... (the operator's names)
  std::string offset = "per_visible";   // "per_visible": tau / i, "constant": tau
  bool offset_trainable = true;
  double offset_init = -1;
  int64_t distance_bias_window = 0;  // W entries a head, 0: no distance bias
  double distance_bias_init_std = 1e-3;
  int64_t window = -1;               // sliding window, -1: none
  std::vector<int64_t> full_layers;  // layers that see everything all the same, ascending
  std::string family = "llama";  // whose layout a model has on disk: llama, mistral, qwen2, qwen3, or one of families/
  bool attention_bias = false;   // q_proj, k_proj and v_proj add a bias
  bool query_bias = true;        // of these q_proj's is trained; otherwise it is 0 and stays so
  bool output_bias = false;      // o_proj adds one
  bool qk_norm = false;          // RMSNorm of every query and key head before RoPE
  std::string mixer = "attention";  // or a MixerKind's name: what the layers mix tokens with
  MixerConfig mix;                  // when it is not attention
  bool mlp = true;                  // a layer has an MLP
  std::string mlp_kind = "swiglu";  // or experts, or what stands between its two matrices: gelu, gelu_tanh, relu
  bool mlp_bias = false;            // its matrices add a bias
  std::string norm = "rms";         // RMSNorm, or "layer": LayerNorm, with a bias
  bool post_norm = false;           // after each addition, not before each half
  bool final_norm = true;           // one after the last layer
  bool embedding_norm = false;      // one before the first layer too
  int64_t experts = 0, experts_per_token = 0;  // mlp_kind experts, of gpt-oss: how many, and how many a token has
  double swiglu_limit = 7,
         swiglu_alpha = 1.702;            // their gate and up end at the limit; gate sigmoid(alpha gate) (up + 1)
  bool scale_scores = true;               // queries x keys by head_dim^-0.5
  bool scale_by_layer = false;            // and by 1 / (layer + 1)
  bool scaled_residual_init = false;      // o_proj and down_proj start with init_std / sqrt(2 num_layers), as in GPT-2
  std::vector<int64_t> attention_layers;  // that attend all the same (a hybrid), ascending
  double init_std = 0.02;
  int64_t bos_token_id = 1;
  int64_t eos_token_id = 2;
  uint64_t tokenizer_fingerprint = 0;  // Tokenizer::fingerprint() of the training text, 0: not recorded

  bool is_plain_llama() const;  // softmax, no distance bias, no window
  // The class that transformers loads the saved model as: <family>ForCausalLM where that class computes the same, else
  // LazyForCausalLM.
  std::string architecture() const;
  // "attention" or the mixer's name.
  std::string mixer_of(int64_t layer) const;
  bool all_attention() const { return mixer == "attention"; }
  bool attends() const;                    // some layer has attention, or its mixer contains it
  int64_t num_kv_cache_layers() const;     // whose cache holds a key and a value of every token, however long the text
  int64_t window_of(int64_t layer) const;  // -1: none
  bool is_lazy() const;                    // Elastic-Softmax with a distance bias
  std::string kind() const;  // "lazy", "transformer", the mixer's name, or the normalizer's for what lies between
  bool has_offset() const;   // a tau per head
  bool has_sink() const;     // softmax's denominator has a learned term per head, as gpt-oss
  bool rotates() const { return positions == "rope" && rope_base > 0; }
  bool has_plain_rope() const;              // RoPE as in Llama
  int64_t rotary_dim() const;               // dimensions of a head that RoPE turns
  double score_scale(int64_t layer) const;  // of queries x keys
  int64_t intermediate() const;             // intermediate_size, or what hidden_ratio makes of it
  // The standard deviation that `name`, a matrix of a layer by its name within it, starts with.
  double init_std_of(const std::string& name) const;
  void validate() const;  // Error naming the field: heads that do not divide, odd head_dim, ...

  // Section [model]; keys as in flame where it has one: kind, vocab_size, hidden_size, num_hidden_layers, num_heads,
  // num_kv_heads, head_dim, hidden_ratio, intermediate_size, tie_word_embeddings, norm_eps, rope_theta,
  // partial_rotary_factor, max_position_embeddings, window_size, initializer_range, bos_token_id, eos_token_id, and
  // ours: normalizer, offset, offset_trainable, offset_init, distance_bias_window, distance_bias_init_std, positions,
  // rope_interleaved, alibi_trainable, query_bias, segment_length, memory_length, clamp_length.
  // `kind = "lazy" | "transformer"` sets the defaults of the two (lazy: elastic, W = 512, rope_theta 1.5e5), "gpt2"
  // those of GPT-2, which is then saved as one; `kind` may also be a mixer's name, with its sizes in [mixer] and
  // attention_layers or attention_every = n (the last of n layers). vocab_size = 0 is allowed here and means the
  // tokenizer's; whoever builds the model fills it in.
  static ModelConfig from_toml(Config& config);
  // Reads LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, LazyForCausalLM and the families of
  // model/families/, in the spelling of transformers 4 or 5, with the key names of Hugging Face (num_attention_heads,
  // rms_norm_eps) or of FLA (num_heads, norm_eps). What the decoder cannot compute, such as experts or quantized
  // weights, is an Error.
  static ModelConfig from_json(const nlohmann::json& json, const std::string& file);
  static ModelConfig from_directory(const std::filesystem::path& directory);  // its config.json
  nlohmann::ordered_json to_json() const;                                     // Hugging Face config.json
};

// Base and scaling that a sequence of `length` tokens is rotated with. They differ from the configuration's only for
// "dynamic" scaling, whose base grows once the sequence is longer than original_length (NTK-aware, as in transformers).
struct Rope {
  double base = 0;  // 0: no rotation
  ops::RopeScaling scaling;
  int64_t rotary_dim = -1;
  bool interleaved = false;
};
Rope rope_at(const ModelConfig& config, int64_t length);

struct ParameterCount {
  int64_t total = 0;             // distinct trained parameters of this configuration
  int64_t tied = 0, untied = 0;  // as if tied, as if untied (decision A1 prints both)
  int64_t embedding = 0;
};
ParameterCount count_parameters(const ModelConfig& config);

}  // namespace lazy
