// Shared code of the skinny GEMM kernels: partition of the inner dimension, multiplication of x by the norm weights,
// and the epilogues.
#pragma once
#include "attention/cuda/mma.cuh"
#include "ops/cuda/page_target.cuh"

namespace lazy::ops::cuda::step {

// A product is the sum of kParts partial sums. Part n consists of the chunks n, n + kParts, ... of the inner dimension.
constexpr int kChunk = 32, kParts = 8;

// Selects the epilogue. plain: an element of the result is the product of a row of x and a row of W. swiglu: it is
// computed from two products, with one row from each half of W. pages: two products are the elements of a RoPE pair of
// q, k or v, which is rotated and stored (PageTarget).
enum class Mode { plain, swiglu, pages };

// Calls run<T, NORM, MODE>() with the template arguments that correspond to the problem. Products with Mode::pages
// always have a norm.
template <typename Run>
void with_kind(const SkinnyGemm& p, const Run& run) {
  const auto of_type = [&]<typename T>() {
    if (!p.y) return run.template operator()<T, true, Mode::pages>();
    const auto of_mode = [&]<Mode MODE>() {
      p.norm_weight ? run.template operator()<T, true, MODE>() : run.template operator()<T, false, MODE>();
    };
    p.swiglu ? of_mode.template operator()<Mode::swiglu>() : of_mode.template operator()<Mode::plain>();
  };
  p.type == DType::bf16 ? of_type.template operator()<__nv_bfloat16>() : of_type.template operator()<__half>();
}

// Returns the index of the row of W that is multiplied for column `column` of the result. With swiglu and pages, which
// need two products, `half` selects the first or the second of them.
template <Mode MODE>
__device__ int row_of(const SkinnyGemm& p, int column, int half) {
  if constexpr (MODE == Mode::pages) {
    const RopePair pair = pair_of(p.pages, column);
    return pair.head * static_cast<int>(p.pages.dim) + (half == 0 ? pair.first : pair.second);
  } else {
    return column + half * static_cast<int>(p.out);
  }
}

// Multiplies two adjacent elements of x by their norm weights, and adds the squares of the elements to `squares`.
template <typename T>
__device__ uint32_t apply_norm_weight_pair(uint32_t x, float w0, float w1, float& squares) {
  const float2 a = kernels::cuda::unpack<T>(x);
  squares = fmaf(a.x, a.x, fmaf(a.y, a.y, squares));
  return kernels::cuda::pack<T>(a.x * w0, a.y * w1);
}
// Multiplies eight adjacent elements of x by their norm weights, and adds the squares of the elements to `squares`.
template <typename T>
__device__ uint4 apply_norm_weight(const uint4& x, const float4& low, const float4& high, float& squares) {
  uint4 y;
  y.x = apply_norm_weight_pair<T>(x.x, low.x, low.y, squares);
  y.y = apply_norm_weight_pair<T>(x.y, low.z, low.w, squares);
  y.z = apply_norm_weight_pair<T>(x.z, high.x, high.y, squares);
  y.w = apply_norm_weight_pair<T>(x.w, high.z, high.w, squares);
  return y;
}

template <typename T>
__device__ float rounded(float x) {
  return kernels::cuda::unpack<T>(kernels::cuda::pack<T>(x, 0.0f)).x;
}

// Returns silu(gate) * up. Both products are rounded to T first.
template <typename T>
__device__ float swiglu(float gate, float up) {
  gate = rounded<T>(gate);
  return gate * __fdividef(1, 1 + __expf(-gate)) * rounded<T>(up);
}

}  // namespace lazy::ops::cuda::step
