// Reads and writes safetensors files, either single files or shards with an index. Files are read by memory mapping. A
// file is written as a stream and appears only when it is complete.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/safetensors_format.h"
#include "model/weights_file.h"

namespace lazy {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Returns the PyTorch dtype of a safetensors dtype, or nullopt if PyTorch does not support it.
std::optional<at::ScalarType> safetensors_dtype(const std::string& name);

// An opened and validated file, or the shards listed in a `*.safetensors.index.json`.
class SafetensorsFile : public WeightsFile {
 public:
  // `path` is a .safetensors file or an index file. Errors name the file, the field, the expected value and the actual
  // value.
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile() override;
  SafetensorsFile(SafetensorsFile&&) noexcept;

  const std::vector<std::string>& names() const override;
  bool has(const std::string& name) const;
  const SafetensorsEntry& entry(const std::string& name) const;
  WeightInfo info(const std::string& name) const override { return {entry(name).dtype, entry(name).shape}; }
  at::Tensor tensor(const std::string& name) const override;
  const std::map<std::string, std::string>& metadata() const;  // metadata of a single file, or of the first shard
  void forget(const std::string& name) const override;
  std::string where(const std::string& name) const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Writes one file under a temporary name and then renames it, so that no reader sees an incomplete file. Tensors may
// have any device and layout; names must be unique. Equal inputs give bitwise equal files.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

// Writes `directory/STEM.safetensors`. If the tensors exceed `max_file_bytes`, writes the shards
// `STEM-00001-of-0000N.safetensors` ... and `STEM.safetensors.index.json` instead. Removes files that an earlier save
// wrote in the other form.
void write_safetensors_sharded(const std::filesystem::path& directory, const std::string& stem,
                               const NamedTensors& tensors, uint64_t max_file_bytes = uint64_t{5} << 30);

// Reads all tensors of a file into newly allocated memory. For small files such as the state of an optimizer.
std::map<std::string, at::Tensor> read_safetensors(const std::filesystem::path& path);

}  // namespace lazy
