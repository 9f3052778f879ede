// Zeroing rows of any element type, for what no row block reaches.
#pragma once
#include <cstdint>

#include "lazy/attention.h"

namespace lazy::kernels::cpu {

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
