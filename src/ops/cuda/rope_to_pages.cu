// Rotation of a few tokens' q and k, and their keys and values into pages: 16 bytes at a time, unless they are not
// aligned. Blocks (token, piece of it); a token has items of its heads of q and k, then of v.
#include <algorithm>

#include "attention/cuda/decode_memory.cuh"
#include "attention/cuda/decode_params.h"
#include "ops/cuda/rope_pairs.cuh"
#include "ops/cuda/step.h"

namespace lazy::ops::cuda {

namespace {

namespace decoding = kernels::cuda::decoding;

constexpr unsigned kMostThreads = 256;

struct Work {
  RopeToPages p;
  unsigned turned, items, of_value, all;  // items of a head of q and k, `turned` of them of pairs; of v; of a token
};

// Not through the read-only path: the kernel in front may still write when this one starts.
template <typename T, int N>
__device__ Bits<T, N> fetch(const T* from) {
  return __ldcg(reinterpret_cast<const Bits<T, N>*>(from));
}

template <typename T, int N, bool INTERLEAVED>
__global__ void __launch_bounds__(kMostThreads) rotate_and_store(const __grid_constant__ Work work) {
  decoding::let_next_start();
  decoding::wait_for_launcher();
  const RopeToPages& p = work.p;
  const unsigned index = blockIdx.y * blockDim.x + threadIdx.x;
  if (index >= work.all) return;
  const int64_t token = blockIdx.x;
  const unsigned heads = static_cast<unsigned>(p.to.heads), kv = static_cast<unsigned>(p.to.kv_heads);
  const auto page = [&] { return p.to.slots[token] * p.to.kv_heads * p.to.dim; };
  const auto copy = [](const T* from, T* to) { store<T, N>(to, fetch<T, N>(from)); };
  const unsigned of_rotated = (heads + kv) * work.items;
  if (index >= of_rotated) {
    const unsigned head = (index - of_rotated) / work.of_value, item = (index - of_rotated) - head * work.of_value;
    return copy(static_cast<const T*>(p.v) + token * p.v_token + head * p.v_head + item * N,
                static_cast<T*>(p.to.values) + page() + head * p.to.dim + item * N);
  }
  const unsigned head = index / work.items, item = index - head * work.items;
  const T* from;
  T* to;
  if (head < heads) {
    from = static_cast<const T*>(p.q) + token * p.q_token + head * p.q_head;
    to = static_cast<T*>(p.to.q) + (token * p.to.heads + head) * p.to.dim;
  } else {
    from = static_cast<const T*>(p.k) + token * p.k_token + (head - heads) * p.k_head;
    to = static_cast<T*>(p.to.keys) + page() + (head - heads) * p.to.dim;
  }
  if (item >= work.turned) {
    const int64_t at = 2 * p.to.table.pairs + (item - work.turned) * N;
    return copy(from + at, to + at);
  }
  constexpr bool kOneVector = kPairsInVector<N, INTERLEAVED>;
  constexpr int P = kOneVector ? N / 2 : N;  // pairs of a thread
  const unsigned pair = item * P, first = INTERLEAVED ? 2 * pair : pair,
                 second = INTERLEAVED ? first + 1 : pair + static_cast<unsigned>(p.to.table.pairs);
  Bits<T, N> low = fetch<T, N>(from + first), high{};
  if constexpr (!kOneVector) high = fetch<T, N>(from + second);
  float cos[P] = {}, sin[P] = {};
  angles<P, true>(p.to.table, p.to.positions[token], pair, cos, sin);
  turn<T, N, INTERLEAVED>(low, high, cos, sin);
  store<T, N>(to + first, low);
  if constexpr (!kOneVector) store<T, N>(to + second, high);
}

template <typename T, int N>
void launch(const RopeToPages& p, cudaStream_t stream) {
  Work work{.p = p};
  work.turned = static_cast<unsigned>((p.to.interleaved && N > 1 ? 2 : 1) * p.to.table.pairs / N);
  work.items = work.turned + static_cast<unsigned>((p.to.dim - 2 * p.to.table.pairs) / N);
  work.of_value = static_cast<unsigned>(p.to.dim / N);
  work.all = static_cast<unsigned>(p.to.heads + p.to.kv_heads) * work.items +
             static_cast<unsigned>(p.to.kv_heads) * work.of_value;
  const unsigned threads = std::min((work.all + 31) / 32 * 32, kMostThreads);
  const dim3 grid(static_cast<unsigned>(p.tokens), (work.all + threads - 1) / threads);
  const auto run = [&](auto interleaved) {
    decoding::start<rotate_and_store<T, N, decltype(interleaved)::value>>(work, grid, static_cast<int>(threads), 0,
                                                                          true, stream);
  };
  p.to.interleaved ? run(std::true_type{}) : run(std::false_type{});
}

}  // namespace

void rope_to_pages(const RopeToPages& p, cudaStream_t stream) {
  if (p.tokens == 0 || p.to.heads + p.to.kv_heads == 0 || p.to.dim == 0) return;
  with_type(p.type, [&](auto zero) {
    using T = decltype(zero);
    constexpr int N = kWide<T>;
    const auto whole = [](auto... sizes) { return ((sizes % N == 0) && ...); };
    const bool wide = whole(p.to.dim, p.to.interleaved ? 2 * p.to.table.pairs : p.to.table.pairs, p.q_token, p.q_head,
                            p.k_token, p.k_head, p.v_token, p.v_head) &&
                      aligned(p.q) && aligned(p.k) && aligned(p.v) && aligned(p.to.q) && aligned(p.to.keys) &&
                      aligned(p.to.values);
    wide ? launch<T, N>(p, stream) : launch<T, 1>(p, stream);
  });
}

}  // namespace lazy::ops::cuda
