// Loads model weights from a folder: maps the tensor names of other programs to the model's names, and reports all
// mismatches in one error.
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

// Opens model.safetensors or its sharded index. Throws an Error if the folder has neither. If the folder has
// pytorch_model.bin or its index instead, the message suggests `lazy convert --from-torch`.
std::unique_ptr<WeightsFile> open_weights(const std::filesystem::path& directory);

// True if the file contains the tensor `name`. The file may use the tensor names of transformers or of FLA
// (flash-linear-attention), with or without the prefix `model.` or `transformer.`.
bool has_weight(const WeightsFile& file, const std::string& name);

// True for buffers that the checkpoints of the model's family contain but that the model computes itself, for example
// inv_freq.
bool is_ignored_weight(const std::string& name, const ModelConfig& config);

// Sets config.tie_embeddings if the file contains no head tensor. This does not apply to folders written by
// transformers, whose config.json states whether embeddings are tied: there, a missing head means that the folder
// contains a model without a head, such as an embedding model, and match_weights() reports the head as missing.
void tie_without_head(const WeightsFile& file, ModelConfig& config);

// Compares the file with the model's tensors before any memory is allocated. Throws an Error that lists all missing and
// unexpected tensors and all tensors of a wrong shape or dtype. The namings of transformers and of FLA are accepted,
// with or without the prefix `model.` or `transformer.`. Rotary buffers are ignored, and tied tensors are optional.
// Returns a map from the names of stored_tensors(config), and their aliases in the file, to the names in the file.
std::map<std::string, std::string> match_weights(const WeightsFile& file, const std::filesystem::path& directory,
                                                 const ModelConfig& config);

// Returns one tensor of the file, looked up by its name in the result of match_weights(). Throws an Error if a value is
// NaN or infinite, or if another tensor of the file that is tied to this one has different values.
at::Tensor checked_tensor(const WeightsFile& file, const std::filesystem::path& directory, const StoredTensor& stored,
                          const std::map<std::string, std::string>& matched);

// Copies the file's tensors in place into `targets`, converted to the targets' dtype, with the checks of
// checked_tensor(). Call match_weights() first.
void load_weights(const WeightsFile& file, const std::filesystem::path& directory, const ModelConfig& config,
                  const NamedTensors& targets);

// packed() combines model tensors, in the order of stored.parts, into one tensor of the file. unpacked() is the
// inverse.
at::Tensor packed(const StoredTensor& stored, const std::vector<at::Tensor>& parts);
std::vector<at::Tensor> unpacked(const StoredTensor& stored, const at::Tensor& tensor);

// Converts the model's tensors to the checkpoint layout of its family.
NamedTensors packed(const ModelConfig& config, const NamedTensors& tensors);

}  // namespace lazy
