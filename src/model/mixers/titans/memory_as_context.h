// Memory as context (MAC) of Titans (arXiv 2501.00663, section 4.1), segment by segment: a segment attends to the
// persistent tokens, to what the memory of earlier segments retrieves for it, and to itself; the memory then learns
// from the attention's output.
#pragma once
#include "model/mixers/mixer.h"

namespace lazy {

std::unique_ptr<Mixer> make_titans_mac(const ModelConfig& config, int64_t layer, at::Device device);

}  // namespace lazy
