// Helpers of the fused operators: type checks, parallel loops over rows.
#pragma once
#include <algorithm>

#include "lazy/attention.h"
#include "ops/library.h"
#include "ops/optional_tensor.h"

namespace lazy::ops {

#define LAZY_CHECK(operation, condition, ...) TORCH_CHECK(condition, "lazy::", operation, ": expected ", __VA_ARGS__)

// Returns the dtype of x as the kernels name it. Throws for unsupported dtypes; float16 is not supported on a CPU.
inline kernels::DType row_type(const char* operation, const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return kernels::DType::f32;
    case at::kBFloat16:
      return kernels::DType::bf16;
    case at::kHalf:
      if (!x.is_cpu()) return kernels::DType::f16;
      [[fallthrough]];
    default:
      LAZY_CHECK(operation, false, x.is_cpu() ? "float32 or bfloat16" : "float32, bfloat16 or float16", ", received ",
                 x.scalar_type());
  }
}

// Checks that t is on the device of x.
inline void check_device(const char* operation, const char* name, const at::Tensor& t, const at::Tensor& x) {
  LAZY_CHECK(operation, t.device() == x.device(), name, " on ", x.device(), ", received ", t.device());
}

inline void check_like(const char* operation, const char* name, const at::Tensor& t, const char* other,
                       const at::Tensor& x) {
  LAZY_CHECK(operation, t.sym_sizes() == x.sym_sizes() && t.scalar_type() == x.scalar_type(), name, " like ", other,
             ", ", x.sym_sizes(), " of ", x.scalar_type(), ", received ", t.sym_sizes(), " of ", t.scalar_type());
  check_device(operation, name, t, x);
}

// Calls function(begin, end) in parallel for ranges of rows; each range has at least about 32768 elements.
template <typename Function>
void parallel_rows(int64_t rows, int64_t dim, const Function& function) {
  at::parallel_for(0, rows, std::max<int64_t>(1, 32768 / std::max<int64_t>(dim, 1)), function);
}

}  // namespace lazy::ops
