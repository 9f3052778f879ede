// The rotation inside other nodes of autograd.
#pragma once
#include "ops/autograd.h"
#include "ops/rope.h"

namespace lazy::ops {

// lazy::rope, by the dispatcher: records gradients unless the caller excludes autograd.
at::Tensor rope(const at::Tensor& x, const RopeArguments& a, bool inverse, const OptionalTensor& positions = {});

// In places of saved_data that begin with "rope_".
void save_rope(torch::autograd::AutogradContext& context, const RopeArguments& a);
RopeArguments saved_rope(torch::autograd::AutogradContext& context);

}  // namespace lazy::ops
