// Memory as context (MAC) of Titans (arXiv 2501.00663, section 4.1). The tokens of each segment attend to the
// persistent tokens, to the tokens retrieved from the memory of earlier segments, and to the tokens of the segment. The
// memory is then updated with the output of the attention.
#pragma once
#include "model/mixers/mixer.h"

namespace lazy {

std::unique_ptr<Mixer> make_titans_mac(const ModelConfig& config, int64_t layer, at::Device device);

}  // namespace lazy
