// A model folder's weights: the names that other programs expect, loading by name with every difference listed at once.
#pragma once
#include <filesystem>
#include <string>

#include "model/safetensors.h"

namespace lazy {

// Names of the tensors in our files: Llama's for a plain softmax model, FLA's (SPEC section 5) for every other.
struct CheckpointNames {
  std::string embedding, final_norm, head;
  std::string layer_prefix;  // "model.layers."
  std::string attention_norm, mlp_norm, attention;

  static CheckpointNames llama();
  static CheckpointNames fla();
};

// model.safetensors, or model.safetensors.index.json beside its shards. Error when the folder has neither.
SafetensorsFile open_weights(const std::filesystem::path& directory);

// True when the file has a tensor of this name under either naming, with or without `model.` / `transformer.`.
bool has_weight(const SafetensorsFile& file, const std::string& name);

// Copies the file's tensors into `targets` (in place, cast to the target's type). Both namings are accepted, with or
// without the prefix; rotary buffers are ignored. `tied_head` names a head that need not be there; if it is, it must
// equal the embedding `tied_to`. Error lists all missing, unexpected and wrongly shaped or typed tensors; values that
// are not finite are an Error too (one cheap pass over each tensor), because nothing computed from them has a meaning.
void load_weights(const SafetensorsFile& file, const std::filesystem::path& directory, const NamedTensors& targets,
                  const std::string& tied_head = "", const std::string& tied_to = "");

}  // namespace lazy
