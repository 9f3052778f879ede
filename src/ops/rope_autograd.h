// Helpers for autograd nodes of other operators that apply RoPE to their inputs.
#pragma once
#include "ops/autograd.h"
#include "ops/rope.h"

namespace lazy::ops {

// Calls lazy::rope through the dispatcher, which records gradients unless the caller excludes autograd.
at::Tensor rope(const at::Tensor& x, const RopeArguments& a, bool inverse, const OptionalTensor& positions = {});

// save_rope() saves the arguments in entries of saved_data whose names begin with "rope_"; saved_rope() reads them.
void save_rope(torch::autograd::AutogradContext& context, const RopeArguments& a);
RopeArguments saved_rope(torch::autograd::AutogradContext& context);

}  // namespace lazy::ops
