// Reads MXFP4 weights (OCP microscaling formats 1.0). A group consists of 32 values of 4 bits, two per byte, with a
// shared 8-bit exponent. gpt-oss stores its experts in this format, as pairs of tensors X_blocks and X_scales.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>

#include "model/weights_file.h"

namespace lazy {

// Converts blocks (..., rows, groups, 16) and scales (..., rows, groups), both uint8, to an fp32 tensor of shape (...,
// 32 * groups, rows). The low nibble of a byte is the first value. A nibble encodes a sign and one of 0, 0.5, 1, 1.5,
// 2, 3, 4, 6; the value is multiplied by 2^(scale - 127).
at::Tensor from_mxfp4(const at::Tensor& blocks, const at::Tensor& scales);

// Wraps `file` so that every pair X_blocks and X_scales appears as one tensor X, (experts, in, out).
std::unique_ptr<WeightsFile> without_mxfp4(std::unique_ptr<WeightsFile> file);

}  // namespace lazy
