// The configuration of a decoder, read from `[model]` in a TOML file or from `config.json` of a model folder.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/enum_table.h"
#include "model/adaptive_vocabulary.h"
#include "ops/normalizers.h"
#include "ops/rope_frequencies.h"

namespace lazy {

class Config;

using ops::Normalizer;

enum class OffsetKind { per_visible, constant };
enum class PositionKind { rope, none, learned, sinusoidal, alibi, transformer_xl };
enum class MlpKind { swiglu, geglu_tanh, experts, gelu, gelu_tanh, relu };
enum class NormKind { rms, layer };
// A sigmoid gate of the attention output: none, one gate per head, or one gate per element of each head.
enum class GateKind { none, head, element };
enum class MixerType {
  attention,
  retnet,
  mamba2,
  delta_net,
  gated_delta_net,
  ttt_linear,
  ttt_mlp,
  titans_lmm,
  titans_mac,
  titans_mag,
  titans_mal
};
enum class ModelFamily {
  llama,
  mistral,
  qwen2,
  qwen3,
  gpt2,
  bloom,
  gpt_oss,
  granite_swa,
  smollm3,
  olmo2,
  phi3,
  gemma2,
  gemma3,
  transformer_xl,
  state_spaces
};

inline constexpr auto kOffsetKinds =
    enum_table<OffsetKind>({{OffsetKind::per_visible, "per_visible"}, {OffsetKind::constant, "constant"}});
inline constexpr auto kPositionKinds = enum_table<PositionKind>({{PositionKind::rope, "rope"},
                                                                 {PositionKind::none, "none"},
                                                                 {PositionKind::learned, "learned"},
                                                                 {PositionKind::sinusoidal, "sinusoidal"},
                                                                 {PositionKind::alibi, "alibi"},
                                                                 {PositionKind::transformer_xl, "transformer_xl"}});
inline constexpr auto kMlpKinds = enum_table<MlpKind>({{MlpKind::swiglu, "swiglu"},
                                                       {MlpKind::geglu_tanh, "geglu_tanh"},
                                                       {MlpKind::experts, "experts"},
                                                       {MlpKind::gelu, "gelu"},
                                                       {MlpKind::gelu_tanh, "gelu_tanh"},
                                                       {MlpKind::relu, "relu"}});
inline constexpr auto kNormKinds = enum_table<NormKind>({{NormKind::rms, "rms"}, {NormKind::layer, "layer"}});
inline constexpr auto kGateKinds =
    enum_table<GateKind>({{GateKind::none, "none"}, {GateKind::head, "head"}, {GateKind::element, "element"}});
inline constexpr auto kMixerTypes = enum_table<MixerType>({{MixerType::attention, "attention"},
                                                           {MixerType::retnet, "retnet"},
                                                           {MixerType::mamba2, "mamba2"},
                                                           {MixerType::delta_net, "delta_net"},
                                                           {MixerType::gated_delta_net, "gated_delta_net"},
                                                           {MixerType::ttt_linear, "ttt_linear"},
                                                           {MixerType::ttt_mlp, "ttt_mlp"},
                                                           {MixerType::titans_lmm, "titans_lmm"},
                                                           {MixerType::titans_mac, "titans_mac"},
                                                           {MixerType::titans_mag, "titans_mag"},
                                                           {MixerType::titans_mal, "titans_mal"}});
// The names are the values of model_type in config.json.
inline constexpr auto kModelFamilies = enum_table<ModelFamily>({{ModelFamily::llama, "llama"},
                                                                {ModelFamily::mistral, "mistral"},
                                                                {ModelFamily::qwen2, "qwen2"},
                                                                {ModelFamily::qwen3, "qwen3"},
                                                                {ModelFamily::gpt2, "gpt2"},
                                                                {ModelFamily::bloom, "bloom"},
                                                                {ModelFamily::gpt_oss, "gpt_oss"},
                                                                {ModelFamily::granite_swa, "granite_swa"},
                                                                {ModelFamily::smollm3, "smollm3"},
                                                                {ModelFamily::olmo2, "olmo2"},
                                                                {ModelFamily::phi3, "phi3"},
                                                                {ModelFamily::gemma2, "gemma2"},
                                                                {ModelFamily::gemma3, "gemma3_text"},
                                                                {ModelFamily::transformer_xl, "transfo-xl"},
                                                                {ModelFamily::state_spaces, "state_spaces"}});
inline constexpr EnumTable kNormalizerNames([] {
  std::array<EnumName<Normalizer>, std::size(ops::kNormalizers)> all{};
  for (size_t n = 0; n < all.size(); ++n) all[n] = {ops::kNormalizers[n].normalizer, ops::kNormalizers[n].name};
  return all;
}());

constexpr const char* name(OffsetKind value) { return kOffsetKinds.name(value); }
constexpr const char* name(PositionKind value) { return kPositionKinds.name(value); }
constexpr const char* name(MlpKind value) { return kMlpKinds.name(value); }
constexpr const char* name(NormKind value) { return kNormKinds.name(value); }
constexpr const char* name(GateKind value) { return kGateKinds.name(value); }
constexpr const char* name(MixerType value) { return kMixerTypes.name(value); }
constexpr const char* name(ModelFamily value) { return kModelFamilies.name(value); }

struct AttentionConfig {
  int64_t num_heads = 16;
  int64_t num_kv_heads = 16;
  int64_t head_dim = 64;
  Normalizer normalizer = Normalizer::softmax;
  // Elastic-Softmax computes ReLU(softmax + offset) with one number tau per head. The offset is tau / (number of
  // visible keys) for per_visible, and tau for constant.
  OffsetKind offset = OffsetKind::per_visible;
  bool offset_trainable = true;
  double offset_init = -1;
  // Used only with the normalizers softmax_sink and elastic_sink, which add a term exp(sink logit) per head to the
  // denominator of softmax. If false, every sink logit stays at sink_init; sink_init 0 is the off-by-one softmax.
  bool sink_trainable = true;
  double sink_init = 0;
  // Each head's output is multiplied by sigmoid(W x), where x is the layer's normalized input (gated attention, arXiv
  // 2505.06708). The initial values of W are drawn from a separate random stream, so the other initial weights do not
  // depend on the gate.
  GateKind gate = GateKind::none;
  int64_t distance_bias_window = 0;  // number of distances per head that have a bias; 0: no distance bias
  double distance_bias_init_std = 1e-3;
  // If true, the initial distance biases are drawn from a separate random stream. All other initial weights are then
  // equal to the weights of a model without distance biases that has the same seed.
  bool distance_bias_init_apart = false;
  int64_t window = -1;               // sliding window in tokens; -1: none
  std::vector<int64_t> full_layers;  // ascending indices of layers that do not use the window
  bool qkv_bias = false;             // q_proj, k_proj and v_proj have a bias
  bool query_bias = true;            // used with qkv_bias; false: the bias of q_proj stays 0
  bool output_bias = false;          // o_proj has a bias
  bool qk_norm = false;              // RMSNorm of every query and key head before RoPE
  bool qk_norm_joint = false;        // with qk_norm: one RMSNorm over all query heads together, one over all key heads
  bool scale_scores = true;          // the products of queries and keys are scaled by head_dim^-0.5
  bool scale_by_layer = false;       // products of queries and keys are also scaled by 1 / (layer + 1)
  double multiplier = 0;             // if not 0: scale of the products of queries and keys instead of head_dim^-0.5
  double softcap = 0;                // if not 0: scaled scores s are replaced by softcap tanh(s / softcap)
};

struct PositionConfig {
  // Every kind can be combined with a distance bias. The kind rope with rope_base 0 encodes no positions.
  PositionKind kind = PositionKind::rope;
  double rope_base = 1e4;            // the default for Lazy models is 1.5e5
  std::vector<double> layer_bases;   // rope_base per layer; 0: no RoPE in that layer; empty: rope_base in all layers
  double partial_rotary_factor = 1;  // fraction of each head's dimensions, from the first one on, that RoPE rotates
  bool rope_interleaved = false;     // RoPE rotates dimensions (2n, 2n + 1) as a pair; false: (n, n + rotary_dim() / 2)
  ops::RopeScaling rope_scaling;     // rope_at() applies the type "dynamic", the RoPE operator applies other types
  // For "longrope": the factors that replace rope_scaling.pair_factors for sequences longer than original_length.
  std::vector<double> long_pair_factors;
  bool scale_windowed_layers = true;  // false: rope_scaling applies only to layers without a window
  bool alibi_trainable = false;       // ALiBi's slopes are trained, starting from their standard values
  // For the kind transformer_xl: number of tokens per segment (0: the whole text is one segment), number of tokens
  // before a segment that the segment can attend to, and maximum distance (larger distances are encoded like this one;
  // 0: no limit).
  int64_t segment_length = 0, memory_length = 0, clamp_length = 0;
  bool shared_relative_biases = false;  // transformer_xl: all layers share the content bias u and the position bias v
};

struct MlpConfig {
  bool enabled = true;  // whether the layers have an MLP
  // The gated kinds swiglu and geglu_tanh compute down(f(gate(x)) up(x)), where f is SiLU or the tanh approximation of
  // GELU. The kind experts is a mixture of experts. The other kinds consist of two matrices with the named activation
  // between them.
  MlpKind kind = MlpKind::swiglu;
  int64_t intermediate_size = 0;  // 0: int(hidden_size * hidden_ratio * 2 / 3), rounded up to a multiple of 256
  double hidden_ratio = 4;
  bool bias = false;
  int64_t experts = 0, experts_per_token = 0;  // number of experts, and number of experts that process a token
  // For the kind experts: the activation of an expert is gate * sigmoid(swiglu_alpha * gate) * (up + 1), where gate and
  // up are clamped to swiglu_limit.
  double swiglu_limit = 7, swiglu_alpha = 1.702;
  bool gated() const { return kind == MlpKind::swiglu || kind == MlpKind::geglu_tanh; }
};

struct NormConfig {
  NormKind kind = NormKind::rms;  // RMSNorm, or LayerNorm with a bias
  double eps = 1e-6;
  bool post_norm = false;       // norm after each residual addition instead of before the mixer and the MLP
  bool branch_norm = false;     // norm of the mixer's and the MLP's output before the residual addition (OLMo 2)
  bool sandwich_norm = false;   // norms of both the input and the output of the mixer and the MLP (Gemma 2 and 3)
  bool unit_offset = false;     // RMSNorm multiplies by 1 + weight; weights start at 0 (Gemma)
  bool final_norm = true;       // norm after the last layer
  bool embedding_norm = false;  // norm before the first layer
};

// Constant factors of activations and logits. Granite multiplies the embedding, multiplies each branch before it is
// added to the residual stream, and divides the logits. Gemma multiplies the embedding by sqrt(hidden_size), rounded to
// the compute dtype, and replaces logits z by logits_softcap tanh(z / logits_softcap); logits_softcap 0 disables this.
struct MultiplierConfig {
  double embedding = 1, branch = 1, logits_divisor = 1;
  bool embedding_by_width = false;
  double logits_softcap = 0;
};

// The token mixer of the layers. The sizes apply only to mixers other than attention; a TOML file sets them in section
// [mixer]. If heads, key_dim or value_dim is 0, it is inferred from hidden_size.
struct MixerConfig {
  MixerType type = MixerType::attention;
  std::vector<int64_t> attention_layers;  // hybrid models: ascending layers that use attention instead of the mixer
  int64_t heads = 0, key_dim = 0, value_dim = 0;  // number of heads; key and value size of one head
  int64_t conv_size = 4;                          // kernel size of the depthwise causal convolution; 0: no convolution
  // Number of tokens per chunk of the chunkwise-parallel algorithm, or per mini-batch of TTT. 0: default of the mixer.
  int64_t chunk = 0;
  int64_t state_size = 128, groups = 1;  // Mamba2: state size N; number of groups of heads that share B and C
  // Mamba2: the step size is clamped to this range after softplus (time_step_limit in transformers).
  double step_min = 0, step_max = std::numeric_limits<double>::infinity();
  bool gate = true;  // whether the output of the mixer is gated
  // Titans: number of layers of the memory MLP, its expansion factor (inner size / input size), number of persistent
  // (learned) tokens that are prepended to the text, and number of tokens per segment.
  int64_t memory_depth = 2, memory_expansion = 4, persistent = 4, segment = 64;
  bool memory_norm = true;  // Titans: the memory is x + norm(MLP(x)); false: MLP(x) (titans/neural_memory.h)
};

// The default is a pre-norm decoder like Transformer++: RMSNorm, softmax attention with RoPE, SwiGLU. With the elastic
// normalizer and distance_bias_window > 0 it is Lazy Attention (arXiv 2601.00919, equations 4 and 5).
struct ModelConfig {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 1024;
  int64_t num_layers = 24;
  int64_t max_length = 4096;  // length of training sequences in tokens; max_position_embeddings in config.json
  AttentionConfig attention;
  PositionConfig positions;
  MlpConfig mlp;
  NormConfig norm;
  MultiplierConfig multipliers;
  MixerConfig mixer;
  ModelFamily family = ModelFamily::llama;  // determines the checkpoint layout
  bool tie_embeddings = false;
  AdaptiveVocabulary adaptive;        // if used, it replaces the embedding table and the output head
  double init_std = 0.02;             // standard deviation of the initial weights
  bool scaled_residual_init = false;  // initialize o_proj and down_proj with init_std / sqrt(2 num_layers), as in GPT-2
  int64_t bos_token_id = 1;
  int64_t eos_token_id = 2;
  // True for a Lazy Attention model that to_lazy() created and that keeps the checkpoint layout of its original family.
  // In comparison with that family, config.json has model_type lazy_<family>, and each layer additionally has a tau per
  // head and a distance bias.
  bool converted = false;
  uint64_t tokenizer_fingerprint = 0;  // Tokenizer::fingerprint() of the tokenizer used in training; 0: not recorded

  bool is_plain_llama() const;      // every layer has attention with is_plain_attention() and without a window
  bool is_plain_attention() const;  // softmax with RoPE as in Llama, without a distance bias and without a gate
  // True if q_proj contains both queries and gates, grouped by key-value head, as in the released models of gated
  // attention, which extend Qwen3.
  bool gates_in_queries() const { return family == ModelFamily::qwen3 && attention.gate != GateKind::none; }
  int64_t gate_size() const;  // number of gate values per token and layer: 0, heads, or heads times head_dim
  // The `architectures` entry of a saved model: <family>ForCausalLM if that class of transformers computes the same
  // function, else LazyForCausalLM.
  std::string architecture() const;
  MixerType mixer_of(int64_t layer) const;
  bool all_attention() const { return mixer.type == MixerType::attention; }
  int64_t num_attention_layers() const;
  bool attends() const;                    // true if at least one layer has attention, alone or inside its mixer
  int64_t num_kv_cache_layers() const;     // number of layers that cache the keys and values of all tokens
  int64_t window_of(int64_t layer) const;  // sliding window of the layer in tokens; -1: none
  bool is_lazy() const;                    // true for Elastic-Softmax with a distance bias
  std::string kind() const;  // "lazy", "transformer", the mixer's name, or the normalizer's name for other attention
  bool has_offset() const;   // each head has an offset tau
  bool has_sink() const;     // the denominator of softmax has an additional term per head, as in gpt-oss
  bool rotates() const { return positions.kind == PositionKind::rope && positions.rope_base > 0; }
  bool has_plain_rope() const;              // RoPE as in Llama
  int64_t rotary_dim() const;               // number of dimensions of a head that RoPE rotates
  double score_scale(int64_t layer) const;  // factor by which the products of queries and keys are multiplied
  double rope_base_of(int64_t layer) const;
  int64_t intermediate() const;  // mlp.intermediate_size, or the size inferred from hidden_ratio
  // Returns the standard deviation of the initial values of a matrix. `name` is relative to the layer, for example
  // mlp.down_proj.weight.
  double init_std_of(const std::string& name) const;
  void validate() const;  // throws an Error that names the field, for example for indivisible heads or an odd head_dim

  // Reads section [model]. The following keys have the same names as in flame, the training program of
  // flash-linear-attention (FLA): kind, vocab_size, hidden_size, num_hidden_layers, num_heads, num_kv_heads, head_dim,
  // hidden_ratio, intermediate_size, tie_word_embeddings, norm_eps, rope_theta, partial_rotary_factor,
  // max_position_embeddings, window_size, initializer_range, bos_token_id, eos_token_id.
  // The following keys are additional: normalizer, offset, offset_trainable, offset_init, sink_trainable, sink_init,
  // attention_gate, distance_bias_window, distance_bias_init_std, distance_bias_init_apart, positions,
  // rope_interleaved, alibi_trainable, query_bias, segment_length, memory_length, clamp_length.
  // `kind = "lazy" | "transformer" | "gpt2"` selects the defaults (lazy: elastic normalizer, distance bias window 512,
  // rope_theta 1.5e5). `kind` may also be a mixer's name; then the sizes of the mixer are in section [mixer], and
  // attention_layers or attention_every = n select layers with attention (the last of every n layers).
  // If vocab_size is 0, the caller must replace it by the vocabulary size of the tokenizer.
  // With `from`, which names a model folder or a run folder, the configuration is read from that folder; all other keys
  // are errors.
  static ModelConfig from_toml(Config& config);
  // Reads LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, LazyForCausalLM and the families of
  // model/families/, as written by transformers 4 or 5, with key names of Hugging Face (num_attention_heads,
  // rms_norm_eps) or of FLA, flash-linear-attention (num_heads, norm_eps). Throws an Error for unsupported features
  // such as quantized weights.
  static ModelConfig from_json(const nlohmann::json& json, const std::string& file);
  static ModelConfig from_directory(const std::filesystem::path& directory);  // reads config.json in this folder
  nlohmann::ordered_json to_json() const;                                     // config.json in Hugging Face format
};

// Returns the model folder that the key model.from names, or, if it names a run folder, the model folder inside it.
// Returns an empty path if the key is absent.
std::filesystem::path pretrained_folder(Config& config);

// RoPE's base and scaling for a sequence of a given length. rope_at() returns them. They differ from the configuration
// only for sequences longer than original_length, with two scaling types: with "dynamic" the base grows (NTK-aware),
// and with "longrope" the long factors replace the short ones. As in transformers, `length` is the number of tokens
// from the start of the sequence to the end of the current forward pass.
struct Rope {
  double base = 0;  // 0: no rotation
  ops::RopeScaling scaling;
  int64_t rotary_dim = -1;
  bool interleaved = false;
};
Rope rope_at(const ModelConfig& config, int64_t length);
// True if rope_at() can return different results for sequences of up to `max_length` tokens.
bool rope_varies(const ModelConfig& config, int64_t max_length = std::numeric_limits<int64_t>::max());

struct ParameterCount {
  int64_t total = 0;             // distinct trained parameters of this configuration
  int64_t tied = 0, untied = 0;  // number of parameters with a tied head, and with a separate head
  int64_t embedding = 0;
};
ParameterCount count_parameters(const ModelConfig& config);

// Converts the configuration of a softmax model to Elastic-Softmax with tau = 0 and `distance_bias_window` entries of
// distance bias (0: none). While tau and the new biases are 0, the converted model computes the same function as the
// original model, because ReLU(softmax + 0) = softmax. An existing distance bias is retained. Throws an Error that
// lists the convertible families if this family cannot be converted.
ModelConfig to_lazy(const ModelConfig& config, int64_t distance_bias_window);
// Returns the configuration of the original family for a configuration that to_lazy() returned.
ModelConfig without_conversion(const ModelConfig& config);
// Values of model_type that to_lazy() supports.
std::vector<std::string> convertible_families();

// Throws an Error that names `source`, a model folder, if the fingerprint of its tokenizer differs from the fingerprint
// in config.json (0: not recorded). The vocabulary sizes are not compared. The tokenizer may have fewer tokens than the
// model, because embeddings are often padded. It may also have more tokens; then only a text that contains a token
// without an embedding causes an error.
void check_tokenizer(const ModelConfig& config, uint64_t fingerprint, const std::string& source);
// Does the check of check_tokenizer() for the tokenizer of a corpus. In addition, this tokenizer must not have more
// tokens than the model's vocabulary.
void check_corpus(const ModelConfig& config, uint64_t fingerprint, int64_t vocab_size, const std::string& source);

// Throws an Error that names `field` of the configuration if `value` is out of range.
void check_range(int64_t value, std::string_view field, int64_t minimum, int64_t maximum);

}  // namespace lazy
