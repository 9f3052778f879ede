// Linear attention whose state fades (SPEC section 2, RetNet and Mamba2's SSD):
//   S_t = a_t S_{t-1} + beta_t k_t v_t^T,  o_t = scale S_t^T q_t + skip v_t,  a_t = exp(log_decay_t).
#pragma once
#include "model/mixers/recurrence/recurrence.h"

namespace lazy::recurrence {

Outputs decay_loop(const Inputs& in);
Outputs decay_chunks(const Inputs& in, int64_t chunk);
// The faster one of the two: a single token by the loop.
Outputs decay(const Inputs& in, int64_t chunk);

}  // namespace lazy::recurrence
