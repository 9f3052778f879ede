// Results are checked before they are timed: at most twice as far from float64 as a plain computation in fp32, plus a
// rounding.
#pragma once
#include <ATen/ATen.h>

#include "core/error.h"

namespace lazy::benchmarks {

inline double relative_error(const at::Tensor& x, const at::Tensor& truth) {
  return ((x.to(truth.device(), at::kDouble) - truth).norm() / truth.norm()).item<double>();
}

// plain: the second reference; truth: float64. `type` is what was computed in. RunError that names `what`.
inline void require_agreement(const char* operation, const std::string& what, at::ScalarType type,
                              const at::Tensor& found, const at::Tensor& plain, const at::Tensor& truth) {
  const double error = relative_error(found, truth);
  const double allowed = 2 * relative_error(plain, truth) + (type == at::kFloat ? 0x1p-24 : 0x1p-8);
  if (error <= allowed) return;
  fail_run(operation, "{} is wrong: relative error {:.2e}, expected at most {:.2e}", what, error, allowed);
}

}  // namespace lazy::benchmarks
