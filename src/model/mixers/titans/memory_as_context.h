// Memory as context (MAC) of Titans (arXiv 2501.00663, section 4.1). Each segment attends to the persistent tokens, to
// what it retrieves from the memory of earlier segments, and to itself. The memory is then updated with the attention's
// output.
#pragma once
#include "model/mixers/mixer.h"

namespace lazy {

std::unique_ptr<Mixer> make_titans_mac(const ModelConfig& config, int64_t layer, at::Device device);

}  // namespace lazy
