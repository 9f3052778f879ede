// The weights of a model folder in any file format: tensors by name, and the index of weights in several files.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lazy {

struct WeightInfo {
  std::string dtype;  // as safetensors names them: "F32", "BF16", ...
  std::vector<int64_t> shape;
};

class WeightsFile {
 public:
  virtual ~WeightsFile() = default;

  virtual const std::vector<std::string>& names() const = 0;  // sorted
  virtual WeightInfo info(const std::string& name) const = 0;
  // The tensor, on the CPU, sharing the mapped memory where it can. Read-only: copy before changing it. Stays valid
  // after this object is gone. Error for a dtype that PyTorch has not.
  virtual at::Tensor tensor(const std::string& name) const = 0;
  // The memory that reading the tensor has filled may be used otherwise; it can be read again.
  virtual void forget(const std::string& name) const = 0;
  // The file that holds the tensor, for messages.
  virtual std::string where(const std::string& name) const = 0;
};

// File name -> names of the tensors that it should hold. Error naming `operation` when `path` is no such index, or
// leads out of its own folder.
std::map<std::string, std::vector<std::string>> read_weight_map(const std::filesystem::path& path,
                                                                const char* operation);

}  // namespace lazy
