// Checkpoint families whose layout differs from Llama's: their fields of config.json, and the mapping between file
// tensors and model tensors. Each family has a separate file. This header does not depend on LibTorch.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/config.h"

namespace lazy {

namespace config_json {
class Fields;
}

// How a tensor of a file is assembled from the model's tensors.
enum class Interleaving {
  plain,  // the file's tensor equals the model's tensor
  // The file's tensor contains the rows of all parts for the first head, then for the second head, and so on (BLOOM,
  // Qwen3 with gates). With one head it is the concatenation of matrices of different heights (Phi-3).
  by_head,
  transposed,  // matrices (out, in) concatenated along out, then transposed (GPT-2's Conv1D); or concatenated vectors
  stacked,     // matrices (out, in) concatenated along out (Transformer-XL)
  shared,      // equal to each part: the file stores one tensor that several layers share
};

struct StoredTensor {
  std::string name;  // name in files; a file may omit the prefix `transformer.` or `model.`
  std::vector<int64_t> shape;
  std::vector<std::string> parts;  // names of the model's tensors; all have the same shape unless `rows` is given
  Interleaving interleaving = Interleaving::plain;
  int64_t heads = 0;                   // for by_head: number of heads
  std::vector<int64_t> rows = {};      // for by_head: rows per head in each part; empty: the same number in all parts
  std::vector<std::string> also = {};  // alternative names of the same tensor in a file
};

struct Family {
  ModelFamily family;                // the name of this value is model_type in config.json
  const char* architecture;          // name of the class in transformers
  std::vector<const char*> ignored;  // name suffixes of buffers that are ignored on load
  void (*defaults)(ModelConfig&);    // sets the properties that all models of the family share, and default sizes
  void (*read)(const config_json::Fields&, ModelConfig&);      // reads the family's fields of config.json
  void (*write)(const ModelConfig&, nlohmann::ordered_json&);  // writes the family's fields of config.json
  void (*check)(const ModelConfig&);                           // throws Error if the layout cannot represent the model
  std::vector<StoredTensor> (*tensors)(const ModelConfig&);    // the tensors in file order, without a tied head
  bool quantized = false;                                      // read() handles quantization_config
  const char* head = "lm_head.weight";  // name of the head's tensor; a file without it has a head tied to the embedding
};

// GPT-2 (Radford et al. 2019), GPT2LMHeadModel: LayerNorm, learned positions, biases everywhere, an MLP with GELU.
extern const Family kGpt2;
// BLOOM (Le Scao et al. 2022), BloomForCausalLM: like GPT-2, but with ALiBi and a LayerNorm after the embedding.
extern const Family kBloom;
// gpt-oss (OpenAI 2025), GptOssForCausalLM: Llama's layout with a learned sink in every head's softmax, alternating
// windows, YaRN, biases and a mixture of experts. MXFP4 weights are read as fp32 (model/mxfp4.h).
extern const Family kGptOss;
// GraniteSWA (IBM 2026), GraniteSWAForCausalLM: Llama's layout with a sink per head, windows and RoPE bases per layer,
// and constant multipliers.
extern const Family kGraniteSwa;
// SmolLM3 (Hugging Face 2025), SmolLM3ForCausalLM: Llama in which some layers have no RoPE.
extern const Family kSmolLm3;
// OLMo 2 (Allen AI 2025, arXiv 2501.00656), Olmo2ForCausalLM: Llama with RMSNorms of the outputs of attention and MLP
// instead of their inputs, an RMSNorm over all query heads, and an RMSNorm over all key heads.
extern const Family kOlmo2;
// Phi-3 (Microsoft 2024, arXiv 2404.14219), Phi3ForCausalLM: Llama with fused projections; RoPE may rotate a fraction
// of each head.
extern const Family kPhi3;
// Gemma 2 (Google 2024, arXiv 2408.00118), Gemma2ForCausalLM: norms of the inputs and of the outputs of attention and
// MLP that multiply by 1 + weight, GeGLU, embeddings scaled by sqrt(hidden_size), alternating windows, and soft caps of
// scores and logits.
extern const Family kGemma2;
// Gemma 3 (Google 2025, arXiv 2503.19786), Gemma3ForCausalLM (text): like Gemma 2, but with an RMSNorm of every query
// and key head instead of soft caps. Layers with a window and layers without a window have different RoPE bases.
extern const Family kGemma3;
// Transformer-XL (Dai et al. 2019), TransfoXLLMHeadModel: relative positions and memory, post-norm LayerNorm, an
// adaptive vocabulary.
extern const Family kTransformerXl;

const std::vector<const Family*>& families();
const Family* find_family(const std::string& model_type);  // null if not registered
const Family* family_of(const ModelConfig& config);        // null for the Llama and Lazy layouts

// Returns one StoredTensor per parameter of the model. Families whose files store every parameter as a separate tensor
// use this function as Family::tensors.
std::vector<StoredTensor> plain_tensors(const ModelConfig& config);

// Returns the tensors of a model's file. A tied head is not listed separately; it is an alias of the embedding.
std::vector<StoredTensor> stored_tensors(const ModelConfig& config);
// Returns the name of the head's tensor. If a file does not contain this tensor, the head is tied to the embedding.
std::string head_name(const ModelConfig& config);

bool is_native_mamba2(const nlohmann::json& config);
ModelConfig read_native_mamba2(const nlohmann::json& config, const std::string& file);
nlohmann::ordered_json write_native_mamba2(const ModelConfig& m);

}  // namespace lazy
