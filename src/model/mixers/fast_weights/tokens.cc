#include "model/mixers/fast_weights/tokens.h"

#include <ATen/ATen.h>

namespace lazy::fast_weights {

at::Tensor to_chunks(const at::Tensor& x, int64_t chunks) {
  return x.unflatten(2, {chunks, x.size(2) / chunks}).movedim(2, 0).contiguous().flatten(1, 2);
}

at::Tensor from_chunks(const at::Tensor& x, int64_t batch) {
  return x.unflatten(1, {batch, x.size(1) / batch}).movedim(0, 2).flatten(2, 3);
}

at::Tensor for_all(const at::Tensor& of_heads, int64_t batch) {
  return of_heads.unsqueeze(0).expand({batch, -1, -1, -1}).flatten(0, 1);
}

}  // namespace lazy::fast_weights
