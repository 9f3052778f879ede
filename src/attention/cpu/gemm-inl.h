// Products of small blocks on the FMA units. One micro-kernel serves every product of the attention:
//   C[r][c] = scale sum_k A[..] B[..]   or   C[r][c] += sum_k A[r * a_row + k * a_step] B[k * b_step + c]
// A is broadcast element by element, B is read as vectors, a 6 x (kVectors lanes) block of C stays in registers: 24
// accumulators of the 32 registers of AVX-512, 12 of the 16 of AVX2.
#if defined(LAZY_ATTENTION_CPU_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LAZY_ATTENTION_CPU_GEMM_INL_H_
#undef LAZY_ATTENTION_CPU_GEMM_INL_H_
#else
#define LAZY_ATTENTION_CPU_GEMM_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <utility>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lazy::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using VF = hn::Vec<F>;
constexpr size_t kLanes = HWY_LANES(float);
constexpr int kRows = 6;                        // rows of a register block
constexpr int kVectors = kLanes >= 16 ? 4 : 2;  // vectors across a register block
constexpr size_t kPanel = kVectors * kLanes;    // columns of a register block

// Highway before 1.1 has no scalar reductions.
HWY_INLINE float sum_lanes(VF v) { return hn::GetLane(hn::SumOfLanes(F(), v)); }
HWY_INLINE float max_lanes(VF v) { return hn::GetLane(hn::MaxOfLanes(F(), v)); }

struct Operand {
  const float* data;
  size_t row, step;  // strides: along C's rows, along the summed index
};

// kAdd: adds to C; otherwise C is overwritten with the sum times `scale`.
template <int kR, int kV, bool kAdd>
HWY_INLINE void block(const Operand a, const float* HWY_RESTRICT b, const size_t b_step, const size_t depth,
                      float* HWY_RESTRICT c, const size_t c_row, const float scale) {
  const F f;
  VF sum[kR][kV];
  HWY_UNROLL(6)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < kV; ++v) sum[r][v] = kAdd ? hn::LoadU(f, c + r * c_row + v * kLanes) : hn::Zero(f);
  }
  const float* HWY_RESTRICT ap = a.data;
  for (size_t k = 0; k < depth; ++k, b += b_step, ap += a.step) {
    VF bv[kV];
    HWY_UNROLL(4)
    for (int v = 0; v < kV; ++v) bv[v] = hn::LoadU(f, b + v * kLanes);
    HWY_UNROLL(6)
    for (int r = 0; r < kR; ++r) {
      const VF av = hn::Set(f, ap[r * a.row]);
      HWY_UNROLL(4)
      for (int v = 0; v < kV; ++v) sum[r][v] = hn::MulAdd(av, bv[v], sum[r][v]);
    }
  }
  HWY_UNROLL(6)
  for (int r = 0; r < kR; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < kV; ++v) {
      hn::StoreU(kAdd ? sum[r][v] : hn::Mul(sum[r][v], hn::Set(f, scale)), f, c + r * c_row + v * kLanes);
    }
  }
}

// rows in 1..kRows, columns a multiple of kLanes up to kPanel.
template <bool kAdd, int kV>
HWY_INLINE void block_rows(size_t rows, const Operand a, const float* b, size_t b_step, size_t depth, float* c,
                           size_t c_row, float scale = 1) {
  switch (rows) {
    case 6:
      return block<6, kV, kAdd>(a, b, b_step, depth, c, c_row, scale);
    case 5:
      return block<5, kV, kAdd>(a, b, b_step, depth, c, c_row, scale);
    case 4:
      return block<4, kV, kAdd>(a, b, b_step, depth, c, c_row, scale);
    case 3:
      return block<3, kV, kAdd>(a, b, b_step, depth, c, c_row, scale);
    case 2:
      return block<2, kV, kAdd>(a, b, b_step, depth, c, c_row, scale);
    case 1:
      return block<1, kV, kAdd>(a, b, b_step, depth, c, c_row, scale);
  }
}

template <bool kAdd>
HWY_INLINE void block_any(size_t rows, size_t vectors, const Operand a, const float* b, size_t b_step, size_t depth,
                          float* c, size_t c_row) {
  switch (vectors) {
    case 4:
      return block_rows<kAdd, kVectors>(rows, a, b, b_step, depth, c, c_row);
    case 3:
      return block_rows<kAdd, std::min(3, kVectors)>(rows, a, b, b_step, depth, c, c_row);
    case 2:
      return block_rows<kAdd, std::min(2, kVectors)>(rows, a, b, b_step, depth, c, c_row);
    case 1:
      return block_rows<kAdd, 1>(rows, a, b, b_step, depth, c, c_row);
  }
}

}  // namespace lazy::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
