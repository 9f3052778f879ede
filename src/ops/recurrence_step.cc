#include "ops/recurrence_step.h"

#include <ATen/ATen.h>

#include "ops/forced_kernel.h"
#include "ops/step_kernels.h"

namespace lazy::ops {

namespace {

// Whether the step kernels support x: one token on a GPU, without gradients, in a supported dtype.
bool serves(const at::Tensor& x) {
  return x.is_cuda() && step_kernels() && !at::GradMode::is_enabled() && x.scalar_type() != at::kDouble &&
         x.size(1) == 1 && x.numel() > 0 && forced_kernel() != "plain" && forced_kernel() != "reference";
}

}  // namespace

bool serves_recurrence_step(const LinearRecurrence& in) {
  return serves(in.v) && in.q.size(3) <= kMaxStepKeys && in.v.size(3) % 4 == 0 && !in.documents.defined();
}

std::pair<at::Tensor, at::Tensor> recurrence_step(const LinearRecurrence& in) {
  return step_kernels()->recurrence_step(in);
}

bool serves_convolution_step(const ConvolutionStep& in) {
  return serves(in.x) && in.past.defined() && in.past.scalar_type() == in.x.scalar_type();
}

std::pair<at::Tensor, at::Tensor> convolution_step(const ConvolutionStep& in) {
  return step_kernels()->convolution_step(in);
}

}  // namespace lazy::ops
