#include "model/mixers/layer_state.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "model/language_model.h"

namespace lazy {

std::vector<at::Tensor>& layer_state(KVCache& cache, int64_t layer) {
  if (at::GradMode::is_enabled()) fail("model", "a cache serves inference: disable gradients first");
  if (cache.streaming) fail("model", "a streaming cache: expected a model of attention alone");
  const auto index = static_cast<size_t>(layer);
  if (cache.states.size() <= index) cache.states.resize(index + 1);
  if (cache.length == 0) cache.states[index].clear();
  return cache.states[index];
}

}  // namespace lazy
