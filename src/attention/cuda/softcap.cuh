// The softcap of attention.h: a score is softcap tanh(x) in place of scale q . k, with x = scale q . k / softcap.
#pragma once
#include <cuda_runtime.h>

#include <cmath>

namespace lazy::kernels::cuda {

// Of a kernel's arguments. value 0: none.
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

// A gradient of the score, times 1 - tanh(x)^2, without the cancellation in that. A hidden pair's zero stays zero
// whatever its product is.
__device__ inline float uncapped_gradient(const Softcap& c, float dot, float ds) {
  const float e = expf(-2 * fabsf(c.scale * dot)), share = 2 * e / (1 + e);  // 1 - tanh|x|
  return ds == 0 ? 0 : ds * (share * (2 - share));
}

}  // namespace lazy::kernels::cuda
