// An argument of an operator that may be left out.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

namespace lazy::ops {

using OptionalTensor = std::optional<at::Tensor>;
inline bool given(const OptionalTensor& t) { return t && t->defined(); }

}  // namespace lazy::ops
