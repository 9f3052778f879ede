#include "sinks/post_hoc.h"

#include <ATen/ATen.h>

#include "core/error.h"
#include "model/config.h"
#include "model/parameters.h"

namespace lazy::sinks {

LanguageModel with_post_hoc_offset(const LanguageModel& model, double tau) {
  ModelConfig config = model.config();
  if (config.attention.normalizer != Normalizer::softmax)
    fail("sinks", "post-hoc offset: expected a softmax model, found {}",
         kNormalizerNames.name(config.attention.normalizer));
  config.attention.normalizer = Normalizer::elastic;
  config.attention.offset = OffsetKind::per_visible;
  config.attention.offset_init = tau;
  config.attention.offset_trainable = false;
  LanguageModel out(config, /*seed=*/0);
  // Both lists have the same order; only the offsets are new. Names differ: another family may lay the copy out.
  const at::NoGradGuard no_grad;
  const std::string offset = CheckpointNames(config).offset;
  const auto& from = model.stored();
  size_t next = 0;
  for (const auto& [name, tensor] : out.stored()) {
    if (name.ends_with(offset)) continue;
    if (next == from.size() || from[next].second.sizes() != tensor.sizes())
      fail("sinks", "post-hoc offset: no weight of the model takes the place of {}", name);
    tensor.copy_(from[next++].second);
  }
  if (next != from.size()) fail("sinks", "post-hoc offset: {} has no place in the copy", from[next].first);
  out.to(model.device());
  out.set_compute_dtype(model.compute_dtype());
  return out;
}

}  // namespace lazy::sinks
