// Scalar conversions between fp32 and the 16-bit formats, with rounding to nearest even as in PyTorch, and the function
// zero_row.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "lazy/attention.h"

namespace lazy::kernels::cpu {

inline float f32_from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

inline uint16_t bf16_from_f32(float x) {
  if (std::isnan(x)) return 0x7FC0;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float f32_from_f16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, magnitude = half & 0x7FFF;
  if (magnitude >= 0x7C00) return std::bit_cast<float>(sign | 0x7F800000 | (magnitude & 0x3FF) << 13);
  if (magnitude >= 0x400) return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

inline uint16_t f16_from_f32(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return sign | 0x7E00;
  if (magnitude >= 0x477FF000) return sign | 0x7C00;  // would round to 65536 or more; the result is infinity
  if (magnitude < 0x38800000) {  // x is below 2^-14 and becomes subnormal; the addition rounds to a multiple of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f));
  }
  const uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
  return sign | static_cast<uint16_t>((rounded - (112u << 23)) >> 13);
}

// Sets one row of any element type to zero, for outputs that no row block writes.
inline void zero_row(DType dtype, const View& view, int64_t batch, int64_t token, int64_t head, int64_t dim) {
  const int64_t offset = batch * view.batch + token * view.token + head * view.head;
  for (int64_t d = 0; d < dim; ++d) {
    if (dtype == DType::f32) {
      static_cast<float*>(view.data)[offset + d * view.dim] = 0;
    } else {
      static_cast<uint16_t*>(view.data)[offset + d * view.dim] = 0;
    }
  }
}

}  // namespace lazy::kernels::cpu
