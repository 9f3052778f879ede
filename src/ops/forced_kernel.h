// The environment variable LAZY_KERNEL selects kernels for debugging:
//   "reference"   computes in float64 on the CPU by the definition, for any type and device of the tensors
//   "plain", "portable", "hopper"   force a CUDA kernel; an error names the condition of this kernel that is not met
//   "one_by_one"  has no effect on lazy::attention and lazy::decode
// With "reference" and "plain", linear recurrences and fast weights use batched products. With any of these values, the
// layers of a decode step run as separate kernels instead of one fused kernel.
#pragma once
#include <string>

#include "ops/decode_kernels.h"

namespace lazy::ops {

// Returns "automatic" if LAZY_KERNEL is unset, empty or "one_by_one". The variable is read only once. Throws
// "LAZY_KERNEL: expected ..., received ...".
const std::string& forced_kernel();
bool one_by_one_is_forced();

// Whether LAZY_KERNEL is "reference". False for float64 tensors on the CPU, which use the reference in any case.
bool reference_is_forced(const AttentionArguments& a);
AttentionOutputs attention_by_reference(LAZY_ATTENTION_PARAMETERS);
BackwardOutputs attention_backward_by_reference(LAZY_ATTENTION_BACKWARD_PARAMETERS);
AttentionOutputs decode_by_reference(LAZY_DECODE_PARAMETERS);

}  // namespace lazy::ops
