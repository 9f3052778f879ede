// Safetensors files as tensors: memory-mapped reading, streamed and atomic writing, the sharded index form of both.
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

// PyTorch's type for one of the format's; nothing where it has none.
std::optional<at::ScalarType> safetensors_dtype(const std::string& name);

// One file, or the files that a `*.safetensors.index.json` lists, opened and checked.
class SafetensorsFile : public WeightsFile {
 public:
  // `path`: a .safetensors file or an index file. Error names file, field, what was expected and what was found.
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile() override;
  SafetensorsFile(SafetensorsFile&&) noexcept;

  const std::vector<std::string>& names() const override;
  bool has(const std::string& name) const;
  const SafetensorsEntry& entry(const std::string& name) const;
  WeightInfo info(const std::string& name) const override { return {entry(name).dtype, entry(name).shape}; }
  at::Tensor tensor(const std::string& name) const override;
  const std::map<std::string, std::string>& metadata() const;  // of a single file; of an index, its first file
  void forget(const std::string& name) const override;
  std::string where(const std::string& name) const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Writes one file under a temporary name and renames it: it is complete or absent. Tensors of any device and layout;
// names must differ. The bytes depend on the arguments alone.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

// `directory/STEM.safetensors`, or, above `max_file_bytes`, `STEM-00001-of-0000N.safetensors` ... with
// `STEM.safetensors.index.json`. Files of the other form left by an earlier save are removed.
void write_safetensors_sharded(const std::filesystem::path& directory, const std::string& stem,
                               const NamedTensors& tensors, uint64_t max_file_bytes = uint64_t{5} << 30);

// Everything in the file, copied into memory of its own, by name: the way back for small state such as an optimizer's.
std::map<std::string, at::Tensor> read_safetensors(const std::filesystem::path& path);

}  // namespace lazy
