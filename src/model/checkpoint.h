// Loading model weights from a folder: tensor names of other programs, and matching with all differences listed at
// once.
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

// Opens model.safetensors or its sharded index. Error if the folder has neither; it names `lazy convert --from-torch`
// if the folder has pytorch_model.bin or its index.
std::unique_ptr<WeightsFile> open_weights(const std::filesystem::path& directory);

// True if the file has a tensor of this name in either naming, with or without the prefix `model.` / `transformer.`.
bool has_weight(const WeightsFile& file, const std::string& name);

// True for buffers that files of the model's family contain and that the model computes itself, for example inv_freq.
bool is_ignored_weight(const std::string& name, const ModelConfig& config);

// Sets config.tie_embeddings if the file has no head tensor. Folders of transformers must set it in config.json:
// otherwise they are models without a head, for example for embeddings, and the head is reported as missing.
void tie_without_head(const WeightsFile& file, ModelConfig& config);

// Compares the file with the model's tensors before anything is allocated. Error lists all missing, unexpected, wrongly
// shaped and wrongly typed tensors at once. Both namings are accepted, with or without the prefix; rotary buffers are
// ignored; tied tensors are optional. Returns a map from the names of stored_tensors(config), and their aliases in the
// file, to the names in the file.
std::map<std::string, std::string> match_weights(const WeightsFile& file, const std::filesystem::path& directory,
                                                 const ModelConfig& config);

// Returns one tensor of the file, by its name from match_weights(). Error if a value is NaN or infinite, or if a tensor
// tied to this one differs from it.
at::Tensor checked_tensor(const WeightsFile& file, const std::filesystem::path& directory, const StoredTensor& stored,
                          const std::map<std::string, std::string>& matched);

// Copies the file's tensors, with the checks of checked_tensor(), into `targets` in place, cast to the targets' dtype.
// After match_weights().
void load_weights(const WeightsFile& file, const std::filesystem::path& directory, const ModelConfig& config,
                  const NamedTensors& targets);

// Packs the model's tensors (in the order of stored.parts) into one tensor of the file, and the reverse.
at::Tensor packed(const StoredTensor& stored, const std::vector<at::Tensor>& parts);
std::vector<at::Tensor> unpacked(const StoredTensor& stored, const at::Tensor& tensor);

// Converts the model's tensors to the layout of the files of its family.
NamedTensors packed(const ModelConfig& config, const NamedTensors& tensors);

}  // namespace lazy
