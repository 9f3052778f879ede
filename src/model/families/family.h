// Families of checkpoints that are laid out otherwise than Llama's: their part of config.json, and how the tensors of
// their files are made of the model's. A family is a file here; it needs no LibTorch.
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

const std::vector<const Family*>& families();
const Family* find_family(const std::string& model_type);  // null: none of these
const Family* family_of(const ModelConfig& config);        // null: laid out as Llama's or ours

// The tensors that a model's file holds. A tied head is not listed, but among the other names of the embedding.
std::vector<StoredTensor> stored_tensors(const ModelConfig& config);
// The tensor whose absence from a file means a tied head.
std::string head_name(const ModelConfig& config);

}  // namespace lazy
