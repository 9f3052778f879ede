// Linear attention with a decaying state (RetNet and Mamba2's SSD):
//  S_t = a_t S_{t-1} + beta_t k_t v_t^T,  o_t = scale S_t^T q_t + skip v_t,  a_t = exp(log_decay_t).
// This header also declares the delta rule, which replaces v_t in the first formula by v_t - a_t S_{t-1}^T k_t and has
// no skip.
#pragma once
#include "model/mixers/recurrence/recurrence.h"

namespace lazy::recurrence {

Outputs decay_loop(const Inputs& in);
Outputs decay_chunks(const Inputs& in, int64_t chunk);
// Computes the decaying recurrence with the fastest implementation: for a single token a fused kernel or decay_loop,
// otherwise decay_chunks.
Outputs decay(const Inputs& in, int64_t chunk);

// The delta rule, computed by a loop over tokens. The state stays bounded if keys have a norm of at most 1 and beta is
// in [0, 1]. The number of key heads G must equal the number of value heads H.
Outputs delta_rule_loop(const Inputs& in);
// The delta rule in the chunkwise form, which solves one triangular system per chunk (Yang et al. 2024, arXiv
// 2406.06484 and 2412.06464).
Outputs delta_rule_chunks(const Inputs& in, int64_t chunk);
// Computes the delta rule with the fastest implementation: for a single token a fused kernel or delta_rule_loop,
// otherwise delta_rule_chunks.
Outputs delta_rule(const Inputs& in, int64_t chunk);

}  // namespace lazy::recurrence
