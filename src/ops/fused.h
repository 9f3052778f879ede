// What the fused operators share: checks of types, rows in parallel, typed dispatcher handles.
#pragma once
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

#include "lazy/attention.h"

namespace lazy::ops {

#define LAZY_CHECK(operation, condition, ...) TORCH_CHECK(condition, "lazy::", operation, ": expected ", __VA_ARGS__)

inline kernels::DType row_type(const char* operation, const at::Tensor& x) {
  LAZY_CHECK(operation, x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16,
             "float32 or bfloat16, received ", x.scalar_type());
  return x.scalar_type() == at::kFloat ? kernels::DType::f32 : kernels::DType::bf16;
}

// Calls function(begin, end) on parts of `rows`, about 32k elements or more each.
template <typename Function>
void parallel_rows(int64_t rows, int64_t dim, const Function& function) {
  at::parallel_for(0, rows, std::max<int64_t>(1, 32768 / std::max<int64_t>(dim, 1)), function);
}

template <typename Signature>
auto operator_handle(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace lazy::ops
