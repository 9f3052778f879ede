// Reports which kernel computes an attention problem on a GPU, for `lazy info`. This header does not include PyTorch
// headers. To check whether the CPU supports a problem, use kernels::unmet_condition of lazy/kernel_table.h.
#pragma once
#include <string>

#include "lazy/kernel_table.h"

namespace lazy::ops {

// Returns the name of the kernel that computes a problem on the current GPU: "plain", "portable" or "hopper". Call
// load_cuda() first.
std::string cuda_attention_kernel(const kernels::Problem& problem);

}  // namespace lazy::ops
