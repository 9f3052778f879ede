// The chunk form as kernels (ops/linear_recurrence.h), where they serve: bf16 on an NVIDIA GPU, keys of up to 256.
#pragma once
#include "model/mixers/recurrence/recurrence.h"

namespace lazy::recurrence {

bool on_tensor_cores(const Inputs& in, bool delta);
Outputs by_tensor_cores(const char* operation, const Inputs& in, bool delta);

}  // namespace lazy::recurrence
