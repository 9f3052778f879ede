#include "attention/cuda/hopper_forward_kept.cuh"

#include <cstdlib>

namespace lazy::kernels::cuda {

bool hopper_keeps(const Params& p) {
  using namespace hopper::kept;
  static const char* const choice = std::getenv("LAZY_KEPT");  // 0: off, to compare in one run
  if (choice && *choice == '0') return false;
  if (p.head_dim != D || p.normalizer != Normalizer::elastic) return false;
  // Of no block of rows may the keys touch more than TILES tiles, wherever in a tile the first one lies.
  if (p.k_length <= TILES * N) return true;
  const int64_t seen = p.causal ? int64_t{p.window} : 2 * int64_t{p.window} - 1;
  return p.window >= 0 && seen + (M - 1) + (N - 1) <= TILES * N;
}

void hopper_forward_kept(const Params& p, cudaStream_t stream) {
  using namespace hopper::kept;
  if (p.dtype == DType::bf16) return p.stats ? launch<__nv_bfloat16, true>(p, stream) : launch<__nv_bfloat16, false>(p, stream);
  p.stats ? launch<__half, true>(p, stream) : launch<__half, false>(p, stream);
}

}  // namespace lazy::kernels::cuda
