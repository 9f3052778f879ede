// How much memory a run has used at most, under torchtitan's names.
#pragma once
#include <ATen/core/Tensor.h>

#include "train/metrics.h"

namespace lazy::train {

// memory/max_reserved(GiB) and (%) of the machine's memory. On a CPU the largest memory the process has held; on a GPU
// since the last call, with memory/max_active(GiB), memory/max_active(%), memory/num_alloc_retries and memory/num_ooms.
Scalars memory_use(at::Device device);

}  // namespace lazy::train
