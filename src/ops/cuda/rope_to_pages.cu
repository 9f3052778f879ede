// Rotation of a few tokens' q and k, and their keys and values into pages.
#include <algorithm>

#include "attention/cuda/decode_memory.cuh"
#include "attention/cuda/decode_params.h"
#include "ops/cuda/rope_to_pages.cuh"

namespace lazy::ops::cuda {

namespace {

namespace decoding = kernels::cuda::decoding;

constexpr unsigned kMostThreads = 256;

struct Work {
  RopeToPages p;
  RopeItems items;
};

// Blocks (token, piece of it).
template <typename T, int N, bool INTERLEAVED>
__global__ void __launch_bounds__(kMostThreads) rotate_and_store(const __grid_constant__ Work work) {
  decoding::let_next_start();
  decoding::wait_for_launcher();
  const unsigned index = blockIdx.y * blockDim.x + threadIdx.x;
  if (index < work.items.all) rotate_item<T, N, INTERLEAVED>(work.p, work.items, blockIdx.x, index);
}

template <typename T, int N>
void launch(const RopeToPages& p, cudaStream_t stream) {
  const Work work{p, rope_items<N>(p)};
  const unsigned all = work.items.all, threads = std::min((all + 31) / 32 * 32, kMostThreads);
  const dim3 grid(static_cast<unsigned>(p.tokens), (all + threads - 1) / threads);
  const auto run = [&](auto interleaved) {
    decoding::start<rotate_and_store<T, N, decltype(interleaved)::value>>(work, grid, static_cast<int>(threads), 0,
                                                                          true, stream);
  };
  p.interleaved ? run(std::true_type{}) : run(std::false_type{});
}

}  // namespace

void rope_to_pages(const RopeToPages& p, cudaStream_t stream) {
  if (p.tokens == 0 || p.heads + p.kv_heads == 0 || p.dim == 0) return;
  with_type(p.type, [&](auto zero) {
    using T = decltype(zero);
    constexpr int N = kWide<T>;
    const auto whole = [](auto... sizes) { return ((sizes % N == 0) && ...); };
    const bool wide = whole(p.dim, p.interleaved ? 2 * p.table.pairs : p.table.pairs, p.q_token, p.q_head, p.k_token,
                            p.k_head, p.v_token, p.v_head) &&
                      aligned(p.q) && aligned(p.k) && aligned(p.v) && aligned(p.q_out) && aligned(p.keys) &&
                      aligned(p.values);
    wide ? launch<T, N>(p, stream) : launch<T, 1>(p, stream);
  });
}

}  // namespace lazy::ops::cuda
