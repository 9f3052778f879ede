#include "ops/rope_to_pages.h"

#include <ATen/ATen.h>

#include "ops/few_rows.h"
#include "ops/step_kernels.h"

namespace lazy::ops {

bool goes_to_pages(const PagePlaces& to) {
  return to.keys.is_cuda() && step_kernels() && to.keys.size(3) % 2 == 0 && to.keys.is_contiguous() &&
         to.values.is_contiguous();
}

at::Tensor few_rows_to_pages(const FewRowsInput& input, const at::Tensor& W, const PagePlaces& to) {
  check_few_rows(input, W);
  const at::Tensor& places = to.rope.positions;
  TORCH_CHECK(input.norm_weight.defined() && goes_to_pages(to) && to.keys.scalar_type() == input.x.scalar_type() &&
                  places.numel() == input.x.size(0) && W.size(0) % to.keys.size(3) == 0,
              "few_rows_to_pages: expected a norm, pages like x, a position for each of its ", input.x.size(0),
              " rows and whole heads, found pages ", to.keys.sizes(), " of ", to.keys.scalar_type(), ", positions ",
              places.sizes(), " and weights ", W.sizes());
  return step_kernels()->few_rows_to_pages(input, W, to);
}

at::Tensor rope_to_pages(const PageWrite& w) {
  if (goes_to_pages(w)) return step_kernels()->rope_to_pages(w);
  const auto rotated = [&](const at::Tensor& x) { return w.rope_base > 0 ? rope(x, w.rope_base, 0, w.rope) : x; };
  w.keys.flatten(0, 1).index_copy_(0, w.slots, rotated(w.k).flatten(0, 1));
  w.values.flatten(0, 1).index_copy_(0, w.slots, w.v.flatten(0, 1));
  return rotated(w.q);
}

}  // namespace lazy::ops
