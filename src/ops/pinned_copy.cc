#include "ops/pinned_copy.h"

#include "ops/step_kernels.h"

namespace lazy::ops {

void pinned_copy(const at::Tensor& to, const at::Tensor& from) {
  TORCH_CHECK(to.sizes() == from.sizes() && to.scalar_type() == from.scalar_type() && to.is_contiguous() &&
                  from.is_contiguous() && to.nbytes() % 8 == 0,
              "pinned_copy: expected contiguous tensors of equal type and size, with a multiple of 8 bytes, found ",
              to.sizes(), " of ", to.scalar_type(), " and ", from.sizes(), " of ", from.scalar_type());
  if (to.is_cpu() && from.is_cpu()) {
    to.copy_(from);
    return;
  }
  const at::Tensor& host = to.is_cpu() ? to : from;
  TORCH_CHECK(to.is_cuda() != from.is_cuda() && host.is_pinned(),
              "pinned_copy: expected one tensor on a GPU and one in pinned host memory, found tensors on ", to.device(),
              " and ", from.device());
  TORCH_CHECK(step_kernels(), "pinned_copy: the CUDA operators are not loaded");
  step_kernels()->pinned_copy(to, from);
}

}  // namespace lazy::ops
