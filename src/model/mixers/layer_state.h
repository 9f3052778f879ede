// A recurrent mixer's place in the cache of generation.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace lazy {

struct ForwardOptions;
struct KVCache;

// The layer's list in cache.states, empty before the first token. Put new tensors there, never change those in it.
std::vector<at::Tensor>& layer_state(KVCache& cache, int64_t layer);

// What a recurrent layer remembers, so many tensors: undefined before the first token, and without a cache.
class RememberedState {
 public:
  RememberedState(const ForwardOptions& options, int64_t layer, size_t count);
  at::Tensor& operator[](size_t n) { return tensors_[n]; }
  void keep();  // for the tokens to come, if there is a cache

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor>* cached_;
};

}  // namespace lazy
