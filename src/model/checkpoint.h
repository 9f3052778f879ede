// A model folder's weights: the names that other programs expect, loading by name with every difference listed at once.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/safetensors.h"

namespace lazy {

struct StoredTensor;  // model/families/families.h

// model.safetensors, or model.safetensors.index.json beside its shards, or the same two of pytorch_model.bin. Error
// when the folder has none of them.
std::unique_ptr<WeightsFile> open_weights(const std::filesystem::path& directory);

// True when the file has a tensor of this name under either naming, with or without `model.` / `transformer.`.
bool has_weight(const WeightsFile& file, const std::string& name);

// Compares the file with what the model needs, before anything is allocated: Error lists all missing, unexpected and
// wrongly shaped or typed tensors at once. Both namings are accepted, with or without the prefix; rotary buffers are
// ignored; tensors that are tied to others may be there or not. Returns the file's name of each of
// stored_tensors(config), and of those that say the same again, by the names of StoredTensor.
std::map<std::string, std::string> match_weights(const WeightsFile& file, const std::filesystem::path& directory,
                                                 const ModelConfig& config);

// One of a file's tensors as it is stored, by the names that match_weights returns. Values that are not finite are an
// Error (one cheap pass), because nothing computed from them has a meaning; so is a tensor tied to this one that
// differs from it.
at::Tensor checked_tensor(const WeightsFile& file, const std::filesystem::path& directory, const StoredTensor& stored,
                          const std::map<std::string, std::string>& matched);

// Copies the file's tensors, checked so, into `targets` (in place, cast to the target's type) after match_weights.
void load_weights(const WeightsFile& file, const std::filesystem::path& directory, const ModelConfig& config,
                  const NamedTensors& targets);

// A tensor of a file from the model's, stored.parts in their order, and the reverse.
at::Tensor packed(const StoredTensor& stored, const std::vector<at::Tensor>& parts);
std::vector<at::Tensor> unpacked(const StoredTensor& stored, const at::Tensor& tensor);

// A file's tensors from the model's: those of a family's layout, or the same.
NamedTensors packed(const ModelConfig& config, const NamedTensors& tensors);

}  // namespace lazy
