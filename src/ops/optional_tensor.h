// An optional tensor argument of an operator.
#pragma once
#include <optional>

#include "ops/tensor.h"

namespace lazy::ops {

using OptionalTensor = std::optional<at::Tensor>;
inline bool given(const OptionalTensor& t) { return t && t->defined(); }
// Converts t for save_for_backward, which accepts undefined tensors but not std::nullopt.
inline at::Tensor tensor_or_undefined(const OptionalTensor& t) { return given(t) ? *t : at::Tensor(); }

}  // namespace lazy::ops
