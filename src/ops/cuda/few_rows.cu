// Products of up to eight rows with a matrix that is read once. The first steps' weights are asked for before the
// kernel in front has ended.
#include "attention/cuda/decode_params.h"
#include "ops/cuda/few_rows_product.cuh"

namespace lazy::ops::cuda {

namespace step {

template <typename T, bool NORM, bool SWIGLU>
__global__ void __launch_bounds__(kThreads, 2) multiply(const __grid_constant__ FewRows p) {
  using Own = HeldProduct<T, NORM, SWIGLU>;
  __shared__ typename Own::Room room;
  const Columns columns{static_cast<int>(blockIdx.x) * kTile};
  Own product;
  product.begin(p, columns);
  decoding::let_next_start();
  decoding::wait_for_launcher();
  product.finish(p, columns, room);
}

template <typename T, bool NORM, bool SWIGLU>
void launch(const FewRows& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((p.out + kTile - 1) / kTile);
  decoding::start<multiply<T, NORM, SWIGLU>>(p, blocks, kThreads, 0, true, stream);
}

}  // namespace step

using namespace step;

void few_rows(const FewRows& p, cudaStream_t stream) {
  if (p.rows == 0 || p.out == 0) return;
  if (p.rows > kRowsByThemselves) return few_rows_tiles(p, stream);
  const auto of_type = [&](auto type) {
    using T = decltype(type);
    if (p.swiglu) return p.norm_weight ? launch<T, true, true>(p, stream) : launch<T, false, true>(p, stream);
    p.norm_weight ? launch<T, true, false>(p, stream) : launch<T, false, false>(p, stream);
  };
  p.type == DType::bf16 ? of_type(__nv_bfloat16{}) : of_type(__half{});
}

}  // namespace lazy::ops::cuda
