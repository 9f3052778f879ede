// The interface of a model folder's weights in any file format: tensors by name.
#pragma once
#include <ATen/core/Tensor.h>

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
  // The tensor on the CPU, sharing the mapped memory if possible. Read-only: copy before modifying it. It stays valid
  // after this object is destroyed. Error for a dtype that PyTorch does not support.
  virtual at::Tensor tensor(const std::string& name) const = 0;
  // Allows the system to reclaim the pages of this tensor; it can be read again.
  virtual void forget(const std::string& name) const = 0;
  // The file that holds the tensor, for messages.
  virtual std::string where(const std::string& name) const = 0;
};

}  // namespace lazy
