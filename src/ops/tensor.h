// Defines at::Tensor for the operators. In the Python package (LAZY_STABLE_ABI) it is the class of ops/stable/tensor.h.
#pragma once
#ifdef LAZY_STABLE_ABI
#include "ops/stable/tensor.h"
#else
#include <ATen/core/Tensor.h>

namespace lazy::ops {

// Returns the size of dimension `dim` as an integer. If the size is symbolic (torch.compile), the compiled graph is
// then valid only for this value.
inline int64_t known_size(const at::Tensor& t, int64_t dim) { return t.sym_size(dim).guard_int(__FILE__, __LINE__); }

}  // namespace lazy::ops
#endif
