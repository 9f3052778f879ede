// Families of checkpoints whose layout differs from Llama's: their part of config.json, and how the tensors of their
// files map to the model's. One file per family. Without LibTorch.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/config.h"

namespace lazy {

namespace config_json {
class Fields;
}

// How a tensor of a file is made of some of the model's.
enum class Interleaving {
  plain,       // it is one of them
  by_head,     // rows of q, of k and of v for the first head, then for the second, ...: BLOOM's
  transposed,  // matrices (out, in) below each other, transposed: GPT-2's Conv1D. Vectors one after the other
  stacked,     // matrices (out, in) below each other: Transformer-XL's
  shared,      // every one of them: a tensor that layers have in common
};

struct StoredTensor {
  std::string name;  // in files, where a prefix `transformer.` or `model.` may be absent
  std::vector<int64_t> shape;
  std::vector<std::string> parts;  // the model's names, of one shape
  Interleaving interleaving = Interleaving::plain;
  int64_t heads = 0;                   // by_head
  std::vector<std::string> also = {};  // other names that a file may have the same tensor by
};

struct Family {
  ModelFamily family;                                          // its name is model_type in config.json
  const char* architecture;                                    // the class in transformers
  std::vector<const char*> ignored;                            // ends of the names of buffers that files may have
  void (*defaults)(ModelConfig&);                              // what all of the family have, and the usual sizes
  void (*read)(const config_json::Fields&, ModelConfig&);      // the fields that are not every model's
  void (*write)(const ModelConfig&, nlohmann::ordered_json&);  // the same
  void (*check)(const ModelConfig&);  // Error where the layout has no place for what the model is
  std::vector<StoredTensor> (*tensors)(const ModelConfig&);  // in the files' order; without a tied head
  bool quantized = false;                                    // read looks at quantization_config
  const char* head = "lm_head.weight";                       // a file that has it not has a tied head
};

// GPT-2 (Radford et al. 2019), GPT2LMHeadModel: LayerNorm, learned positions, biases everywhere, an MLP with GELU.
extern const Family kGpt2;
// BLOOM (Le Scao et al. 2022), BloomForCausalLM: as GPT-2 with ALiBi and a LayerNorm after the embedding.
extern const Family kBloom;
// gpt-oss (OpenAI 2025), GptOssForCausalLM: Llama's layout with a learned sink in every head's softmax, alternating
// windows, YaRN, biases and a mixture of experts. MXFP4 weights are read as fp32 (model/mxfp4.h).
extern const Family kGptOss;
// Transformer-XL (Dai et al. 2019), TransfoXLLMHeadModel: relative positions and memory, post-norm LayerNorm, an
// adaptive vocabulary.
extern const Family kTransformerXl;

const std::vector<const Family*>& families();
const Family* find_family(const std::string& model_type);  // null: none of these
const Family* family_of(const ModelConfig& config);        // null: laid out as Llama's or ours

// The tensors that a model's file holds. A tied head is not listed, but among the other names of the embedding.
std::vector<StoredTensor> stored_tensors(const ModelConfig& config);
// The tensor whose absence from a file means a tied head.
std::string head_name(const ModelConfig& config);

bool is_native_mamba2(const nlohmann::json& config);
ModelConfig read_native_mamba2(const nlohmann::json& config, const std::string& file);
nlohmann::ordered_json write_native_mamba2(const ModelConfig& m);

}  // namespace lazy
