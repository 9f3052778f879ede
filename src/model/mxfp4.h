// MXFP4 (OCP microscaling formats 1.0): 32 numbers of 4 bits, two to a byte, that share an exponent of 8 bits. gpt-oss
// stores its experts so, as a pair of tensors X_blocks and X_scales.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "model/weights_file.h"

namespace lazy {

// blocks (..., rows, groups, 16) and scales (..., rows, groups), both bytes -> (..., 32 groups, rows) fp32. A byte's
// low half comes first; a half is a sign and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6, times 2^(scale - 127).
at::Tensor from_mxfp4(const at::Tensor& blocks, const at::Tensor& scales);

// The same file, in which every X_blocks and X_scales are one tensor X, (experts, in, out).
std::unique_ptr<WeightsFile> without_mxfp4(std::unique_ptr<WeightsFile> file);

}  // namespace lazy
