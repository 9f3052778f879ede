#include "sinks/post_hoc.h"

#include "core/error.h"
#include "model/config.h"

namespace lazy::sinks {

LanguageModel with_post_hoc_offset(const LanguageModel& model, double tau) {
  if (model.config().attention.normalizer != Normalizer::softmax)
    fail("sinks", "post-hoc offset: expected a softmax model, found {}",
         kNormalizerNames.name(model.config().attention.normalizer));
  ModelConfig config = to_lazy(model.config(), /*distance_bias_window=*/0);
  config.attention.offset_init = tau;
  config.attention.offset_trainable = false;
  return model.converted(config);
}

}  // namespace lazy::sinks
