#include "model/mixers/layer_state.h"

#include "model/language_model.h"

namespace lazy {

std::vector<at::Tensor>& layer_state(KVCache& cache, int64_t layer) {
  const auto index = static_cast<size_t>(layer);
  if (cache.states.size() <= index) cache.states.resize(index + 1);
  if (cache.length == 0) cache.states[index].clear();
  return cache.states[index];
}

RememberedState::RememberedState(const ForwardOptions& options, int64_t layer, size_t count)
    : tensors_(count), cached_(options.cache ? &layer_state(*options.cache, layer) : nullptr) {
  if (cached_ && !cached_->empty()) tensors_ = *cached_;
}

void RememberedState::keep() {
  if (cached_) *cached_ = tensors_;
}

}  // namespace lazy
