// LAZY_KERNEL, for debugging: "reference" computes in float64 on the CPU by the definition, whatever the tensors' type
// and device; "plain", "portable" and "hopper" force a CUDA kernel, and an error names the condition that it does not
// meet. With the first two the linear recurrences and fast weights run as batched products. With any of these, and with
// "one_by_one", which forces nothing else, the layers of a decoding step are kernels one by one.
#pragma once
#include <string>

#include "ops/decode_kernels.h"

namespace lazy::ops {

// "automatic" where LAZY_KERNEL is unset, empty or "one_by_one". Read once. Throws "LAZY_KERNEL: expected ..., received
// ...".
const std::string& forced_kernel();
bool one_by_one_is_forced();

bool reference_is_forced(const AttentionArguments& a);  // false for float64 on the CPU, which is the reference already
AttentionOutputs attention_by_reference(LAZY_ATTENTION_PARAMETERS);
BackwardOutputs attention_backward_by_reference(LAZY_ATTENTION_BACKWARD_PARAMETERS);
AttentionOutputs decode_by_reference(LAZY_DECODE_PARAMETERS);

}  // namespace lazy::ops
