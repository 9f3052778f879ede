// What attention within a window and the memory beside it keep of a text between two calls, in one list of the cache.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace lazy {

struct ForwardOptions;

class BranchStates {
 public:
  // persistent: learned tokens that the memory sees before the text.
  BranchStates(const ForwardOptions& options, int64_t layer, int64_t persistent);

  // To read and renew; null without a cache. The window has two tensors, keys and values.
  std::vector<at::Tensor>* window() { return kept_ ? &window_ : nullptr; }
  std::vector<at::Tensor>* memory() { return kept_ ? &memory_ : nullptr; }
  int64_t seen() const { return seen_; }  // tokens that the memory has seen
  void keep();                            // into the cache, if there is one

 private:
  std::vector<at::Tensor>* kept_ = nullptr;
  std::vector<at::Tensor> window_, memory_;
  int64_t seen_ = 0;
};

}  // namespace lazy
