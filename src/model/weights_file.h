// Access to the weights of a model folder by tensor name, independent of the file format.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace lazy {

struct WeightInfo {
  std::string dtype;  // dtype name in safetensors: "F32", "BF16", ...
  std::vector<int64_t> shape;
};

class WeightsFile {
 public:
  virtual ~WeightsFile() = default;

  virtual const std::vector<std::string>& names() const = 0;  // sorted
  virtual WeightInfo info(const std::string& name) const = 0;
  // Returns the tensor on the CPU. It shares the mapped memory if possible and stays valid after this object is
  // destroyed. It is read-only: copy it before modifying it. Throws an Error for a dtype that PyTorch does not support.
  virtual at::Tensor tensor(const std::string& name) const = 0;
  // Allows the operating system to reclaim the memory pages of this tensor. The tensor can be read again later.
  virtual void forget(const std::string& name) const = 0;
  // Returns the name of the file that contains the tensor, for messages.
  virtual std::string where(const std::string& name) const = 0;
};

}  // namespace lazy
