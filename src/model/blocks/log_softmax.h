// The logarithm of softmax over a large vocabulary.
#pragma once
#include <ATen/ATen.h>

namespace lazy {

// Returns log_softmax of x over the last axis. at::log_softmax on a CPU adds the exponentials in one fp32 sum per
// vector lane, which has a relative error of 1e-4 for 262144 nearly equal logits; the sum of at::logsumexp is accurate.
inline at::Tensor log_softmax_rows(const at::Tensor& x) { return x - at::logsumexp(x, {-1}, /*keepdim=*/true); }

}  // namespace lazy
