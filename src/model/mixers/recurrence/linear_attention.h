// Linear attention whose state fades (RetNet and Mamba2's SSD):
//   S_t = a_t S_{t-1} + beta_t k_t v_t^T,  o_t = scale S_t^T q_t + skip v_t,  a_t = exp(log_decay_t).
#pragma once
#include "model/mixers/recurrence/recurrence.h"

namespace lazy::recurrence {

Outputs decay_loop(const Inputs& in);
Outputs decay_chunks(const Inputs& in, int64_t chunk);
// The faster one of the two: a single token by the loop.
Outputs decay(const Inputs& in, int64_t chunk);

// Keys of norm at most 1 with beta in [0, 1] keep the state bounded. As many keys as heads.
Outputs delta_rule_loop(const Inputs& in);
// By a triangular system a chunk (Yang et al. 2024, arXiv 2406.06484 and 2412.06464).
Outputs delta_rule_chunks(const Inputs& in, int64_t chunk);
// The faster one of the two: a single token by the loop.
Outputs delta_rule(const Inputs& in, int64_t chunk);

}  // namespace lazy::recurrence
