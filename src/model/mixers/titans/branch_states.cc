#include "model/mixers/titans/branch_states.h"

#include "model/language_model.h"
#include "model/mixers/layer_state.h"

namespace lazy {

BranchStates::BranchStates(const ForwardOptions& options, int64_t layer, int64_t persistent) {
  if (!options.cache) return;
  kept_ = &layer_state(*options.cache, layer);
  if (options.cache->length == 0) return;
  window_.assign(kept_->begin(), kept_->begin() + 2);
  memory_.assign(kept_->begin() + 2, kept_->end());
  seen_ = persistent + options.cache->length;
}

void BranchStates::keep() {
  if (!kept_) return;
  *kept_ = window_;
  kept_->insert(kept_->end(), memory_.begin(), memory_.end());
}

}  // namespace lazy
