// Launches of the portable backward. The first kernel computes the row states: from lists of keys
// (portable_backward_lists.cuh), from sweeps over the keys (portable_backward_rows.cuh), or from the outputs of the
// forward (backward_sums.cuh). The second kernel computes dK, dV and the fp32 sums of dQ, and the third kernel converts
// these sums to d_q.
#include <bit>

#include "attention/cuda/launchers.h"
#include "attention/cuda/portable_backward_keys.cuh"
#include "attention/cuda/portable_backward_rows.cuh"

namespace lazy::kernels::cuda {

namespace portable {

// Returns the kernel that choose() returns for std::true_type (the problem has a softcap) or std::false_type. Only the
// exponential family has instantiations with a softcap.
template <NormalizerFamily F, typename Choose>
auto with_capped(const Params& p, const Choose& choose) {
  if constexpr (F == NormalizerFamily::exponential) {
    if (p.softcap) return choose(std::true_type());
  }
  return choose(std::false_type());
}

template <typename T, int D, NormalizerFamily F>
void launch_rows_or_sums(const Params& p, int partial_step, cudaStream_t stream) {
  if constexpr (F == NormalizerFamily::exponential) {
    if (has_rounded_sums(p)) {
      constexpr int columns = std::bit_ceil(unsigned{D});
      const int tiles = tile_count(p, p.q_length, 64);
      const auto kernel = takes_tau(p.normalizer) ? backward_sums<T, columns, false, StoreRowState>
                                                  : backward_sums<T, columns, true, StoreRowState>;
      return launch("the portable backward kernel for row sums", kernel, dim3(tiles * p.batch, p.heads), 256, 0, stream,
                    p, tiles, partial_step);
    }
  }
  if constexpr (F == NormalizerFamily::threshold) {
    using L = ListShape<D>;
    const int tiles = tile_count(p, p.q_length, L::M);
    launch("the portable backward kernel for key lists", backward_lists<T, D>, dim3(tiles * p.batch, p.heads),
           L::threads, L::bytes, stream, p, tiles);
  }
  using S = BackwardRowsShape<D>;
  const int tiles = tile_count(p, p.q_length, S::M);
  const auto kernel = with_capped<F>(p, [](auto capped) { return backward_rows<T, D, F, capped>; });
  launch("the portable backward kernel for query rows", kernel, dim3(tiles * p.batch, p.heads), S::threads,
         RowSweep<T, D, S>::bytes + S::M * D * 2, stream, p, tiles, partial_step);
}

template <typename T, int D, NormalizerFamily F>
void launch_backward(const Params& p, int partial_step, cudaStream_t stream) {
  using S = BackwardKeysShape<D>;
  // 2048 bytes are an upper bound of the static shared memory.
  constexpr int needed = S::bytes + Diagonals<S::MI, S::M>::bytes(kMaxBlockBias) + 2048;
  constexpr int shared_memory = find_entry(CudaKernel::portable, F, D)->shared_memory;
  static_assert(needed <= (shared_memory ? shared_memory : kMinSharedMemory));
  const int key_tiles = tile_count(p, p.k_length, S::N), dq_tiles = tile_count(p, p.q_length, 64);
  const int key_bytes = S::bytes + (p.bias_slabs ? Diagonals<S::MI, S::M>::bytes(p.bias_window) : 0);
  if (p.dq_sum) {
    const int64_t heads = static_cast<int64_t>(p.batch) * p.heads;
    check(cudaMemsetAsync(p.dq_sum, 0, heads * tile_count(p, p.q_length, 16) * 16 * D * sizeof(float), stream),
          "to clear the sums of d_q");
  }
  launch_rows_or_sums<T, D, F>(p, partial_step, stream);
  const auto keys = with_capped<F>(p, [](auto capped) { return backward_keys<T, D, F, capped>; });
  launch("the portable backward kernel for keys", keys, dim3(key_tiles * p.batch, p.kv_heads), S::threads, key_bytes,
         stream, p, key_tiles, partial_step);
  if (p.dq_sum) {
    launch("the portable backward kernel for d_q", finish_dq<T>, dim3(dq_tiles * p.batch, p.heads), 256, 0, stream, p,
           dq_tiles);
  }
}

template <NormalizerFamily F, int D>
struct PortableBackward {
  static void launch(const Params& p, int partial_step, cudaStream_t stream) {
    with_half_type<__nv_bfloat16, __half>(
        p.dtype, [&](auto type) { launch_backward<decltype(type), D, F>(p, partial_step, stream); });
  }
};

}  // namespace portable

BackwardLauncher portable_backward(NormalizerFamily family, int64_t head_size) {
  return find_launcher<CudaKernel::portable, BackwardLauncher, portable::PortableBackward>(family, head_size);
}

}  // namespace lazy::kernels::cuda
