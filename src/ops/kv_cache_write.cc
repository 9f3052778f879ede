#include "ops/kv_cache_write.h"

#include <ATen/ATen.h>

#include "ops/skinny_gemm.h"
#include "ops/step_kernels.h"

namespace lazy::ops {

bool can_write_pages(const PagePlaces& to) {
  const auto in_vectors = [&](const at::Tensor& pages) {
    return pages.is_contiguous() && reinterpret_cast<uintptr_t>(pages.const_data_ptr()) % 16 == 0;
  };
  return to.keys.is_cuda() && step_kernels() && to.keys.sizes() == to.values.sizes() && to.keys.size(3) % 8 == 0 &&
         (to.rope_base <= 0 || to.rope.rotary_dim < 0 || to.rope.rotary_dim % 8 == 0) && in_vectors(to.keys) &&
         in_vectors(to.values);
}

at::Tensor skinny_gemm_kv_cache_write(const SkinnyGemmInput& input, const at::Tensor& W, const PagePlaces& to) {
  check_skinny_gemm(input, W);
  const at::Tensor& positions = to.rope.positions;
  const at::ScalarType type = input.x.scalar_type();
  TORCH_CHECK(input.norm_weight.defined() && !input.add.defined() && can_write_pages(to) &&
                  to.keys.scalar_type() == type && to.values.scalar_type() == type && positions.dim() == 2 &&
                  positions.numel() == input.x.size(0) && to.slots.numel() == input.x.size(0) &&
                  W.size(0) % to.keys.size(3) == 0 && W.size(0) >= 2 * to.keys.size(2) * to.keys.size(3),
              "skinny_gemm_kv_cache_write: expected norm weights, pages in the dtype of x, a position and a slot for "
              "each of the ",
              input.x.size(0), " rows of x, and weights of complete heads, found pages ", to.keys.sizes(), " of ",
              to.keys.scalar_type(), ", positions ", positions.sizes(), ", slots ", to.slots.sizes(), " and weights ",
              W.sizes());
  return step_kernels()->skinny_gemm_kv_cache_write(input, W, to);
}

namespace {

bool has_kernel(const PageWrite& w) {
  return w.q.is_cuda() && step_kernels() && w.q.size(3) % 2 == 0 && w.keys.is_contiguous() && w.values.is_contiguous();
}

}  // namespace

at::Tensor kv_cache_write(const PageWrite& w) {
  if (has_kernel(w)) return step_kernels()->kv_cache_write(w, {}).q;
  const auto rotated = [&](const at::Tensor& x) { return w.rope_base > 0 ? rope(x, w.rope_base, 0, w.rope) : x; };
  w.keys.flatten(0, 1).index_copy_(0, w.slots, rotated(w.k).flatten(0, 1));
  w.values.flatten(0, 1).index_copy_(0, w.slots, w.v.flatten(0, 1));
  return rotated(w.q);
}

GatheredKeys kv_cache_write_and_gather(const PageWrite& w, const at::Tensor& sources) {
  TORCH_CHECK(sources.dim() == 1 && sources.scalar_type() == at::kLong && sources.device() == w.q.device(),
              "kv_cache_write_and_gather: expected sources (rows) int64 on ", w.q.device(), ", found ", sources.sizes(),
              " ", sources.scalar_type(), " on ", sources.device());
  if (has_kernel(w)) return step_kernels()->kv_cache_write(w, sources);
  GatheredKeys out{.q = kv_cache_write(w), .keys = {}, .values = {}};
  const at::Tensor places =
      at::where(sources >= 0, w.slots.index_select(0, sources.clamp_min(0)), (in_pages(0) - sources).clamp_min(0));
  const at::Tensor zeros = (sources == kZeros).view({-1, 1, 1});
  const auto gathered = [&](const at::Tensor& pages) {
    return pages.flatten(0, 1).index_select(0, places).masked_fill_(zeros, 0);
  };
  out.keys = gathered(w.keys);
  out.values = gathered(w.values);
  return out;
}

}  // namespace lazy::ops
