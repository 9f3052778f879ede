// Defines at::Tensor for the operators. In the Python package (LAZY_STABLE_ABI) it is the class of ops/stable/tensor.h.
#pragma once
#ifdef LAZY_STABLE_ABI
#include "ops/stable/tensor.h"
#else
#include <ATen/core/Tensor.h>

namespace lazy::ops {

// Returns a size as a number. A fake kernel that needs the value specializes on it.
inline int64_t known_size(const at::Tensor& t, int64_t dim) { return t.sym_size(dim).guard_int(__FILE__, __LINE__); }

}  // namespace lazy::ops
#endif
