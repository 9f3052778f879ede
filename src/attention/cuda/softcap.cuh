// The softcap (attention.h): the score is softcap tanh(x) instead of scale q . k, with x = scale q . k / softcap.
#pragma once
#include <cuda_runtime.h>

#include <cmath>

namespace lazy::kernels::cuda {

// The softcap as a kernel argument. If `value` is 0, scores are not capped.
struct Softcap {
  float value, scale;  // x = scale * (q . k)
  constexpr explicit operator bool() const { return value > 0; }
};

template <typename Problem>
Softcap softcap_of(const Problem& p) {
  if (!(p.softcap > 0)) return {};
  return {static_cast<float>(p.softcap), static_cast<float>(p.scale / p.softcap)};
}

__device__ inline float capped(const Softcap& c, float dot) { return c.value * tanhf(c.scale * dot); }

// Multiplies the score gradient ds by 1 - tanh(x)^2, computed without cancellation. If ds is zero (masked pair), the
// result is zero even if `dot` is infinite or NaN.
__device__ inline float uncapped_gradient(const Softcap& c, float dot, float ds) {
  const float e = expf(-2 * fabsf(c.scale * dot)), share = 2 * e / (1 + e);  // share = 1 - tanh|x|
  return ds == 0 ? 0 : ds * (share * (2 - share));
}

}  // namespace lazy::kernels::cuda
