#include "ops/rope_to_pages.h"

#include <ATen/ATen.h>

#include "ops/step_kernels.h"

namespace lazy::ops {

at::Tensor rope_to_pages(const PageWrite& w) {
  if (w.q.is_cuda() && step_kernels() && w.q.size(3) % 2 == 0 && w.keys.is_contiguous() && w.values.is_contiguous())
    return step_kernels()->rope_to_pages(w);
  const auto rotated = [&](const at::Tensor& x) { return w.rope_base > 0 ? rope(x, w.rope_base, 0, w.rope) : x; };
  w.keys.flatten(0, 1).index_copy_(0, w.slots, rotated(w.k).flatten(0, 1));
  w.values.flatten(0, 1).index_copy_(0, w.slots, w.v.flatten(0, 1));
  return rotated(w.q);
}

}  // namespace lazy::ops
