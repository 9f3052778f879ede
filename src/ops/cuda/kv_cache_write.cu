// KV-cache write: applies RoPE to q and k of the tokens and stores keys and values to pages, 16 bytes at a time if the
// tensors are aligned. An item is the part of a head that a thread processes at a time: one vector, or the two vectors
// that contain the elements of RoPE pairs. A thread processes the same item of several heads, so that several loads are
// in flight. The RoPE angles are equal for these heads. blockIdx.y enumerates the items of the groups of heads of q,
// then of k, then of v. blockIdx.x enumerates the tokens, or the rows of the gathered keys and values.
#include <algorithm>

#include "attention/cuda/decode_memory.cuh"
#include "attention/cuda/decode_params.h"
#include "ops/cuda/rope_pairs.cuh"
#include "ops/cuda/step.h"
#include "ops/page_indices.h"

namespace lazy::ops::cuda {

namespace {

namespace decoding = kernels::cuda::decoding;

constexpr unsigned kMaxThreads = 256;

struct KvCacheWriteWork {
  KvCacheWrite p;
  // Numbers of items per head, in the order of the three members: items of q or k that contain pairs to rotate, all
  // items of q or k, and items of v.
  unsigned turned, items, of_value;
  unsigned groups, kv_groups;  // groups: groups of heads of q; kv_groups: groups of heads of k, and of v
  unsigned width, tokens;      // width: threads per token (or gathered row); tokens: tokens (or rows) per block
};

// The loads bypass the read-only cache, because the previous kernel may still write the data when this kernel starts.
template <typename T, int N>
__device__ Bits<T, N> fetch(const T* from) {
  return __ldcg(reinterpret_cast<const Bits<T, N>*>(from));
}

// HEADS is the number of heads in a group. The distance between consecutive heads of a group is the number of groups.
template <typename T, int N, bool INTERLEAVED, int HEADS>
__global__ void __launch_bounds__(kMaxThreads) rotate_and_store(const __grid_constant__ KvCacheWriteWork work) {
  decoding::let_next_start();
  decoding::wait_for_launcher();
  const KvCacheWrite& p = work.p;
  const unsigned of_q = work.groups * work.items, of_rotated = of_q + work.kv_groups * work.items;
  const unsigned of_block = threadIdx.x / work.width, index = blockIdx.y * work.width + threadIdx.x % work.width;
  const int64_t n = static_cast<int64_t>(blockIdx.x) * work.tokens + of_block;
  const bool is_q = index < of_q, is_v = index >= of_rotated, gathers = !is_q && p.rows > 0;
  if (index >= of_rotated + work.kv_groups * work.of_value || n >= (gathers ? p.rows : p.tokens)) return;
  const int64_t token = gathers ? p.sources[n] : n;
  const unsigned among = is_q ? index : is_v ? index - of_rotated : index - of_q;
  const unsigned groups = is_q ? work.groups : work.kv_groups, items = is_v ? work.of_value : work.items;
  const unsigned group = among / items, item = among - group * items;
  const auto heads = static_cast<unsigned>(is_q ? p.to.heads : p.to.kv_heads);

  // Addresses of head 0: the source `from`, and the destinations `to` (q or pages) and `also` (gathered keys or
  // values). If `from` is null, zeros are stored. A destination that is null is not written.
  const T* from = nullptr;
  T *to = nullptr, *also = nullptr;
  int64_t from_head = p.to.dim;
  const int64_t row_size = heads * p.to.dim;
  if (is_q) {
    from = static_cast<const T*>(p.q) + token * p.q_token;
    from_head = p.q_head;
    to = static_cast<T*>(p.to.q) + token * row_size;
  } else {
    T* const pages = static_cast<T*>(is_v ? p.to.values : p.to.keys);
    if (gathers) also = static_cast<T*>(is_v ? p.gathered_values : p.gathered_keys) + n * row_size;
    if (token >= 0) {
      from = static_cast<const T*>(is_v ? p.v : p.k) + token * (is_v ? p.v_token : p.k_token);
      from_head = is_v ? p.v_head : p.k_head;
      to = pages + p.to.slots[token] * row_size;
    } else if (token < kZeros) {
      from = pages + in_pages(token) * row_size;
    }
  }
  const auto fetch_all = [&](Bits<T, N>(&x)[HEADS], int64_t at) {
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
      const unsigned head = h * groups + group;
      x[h] = from && head < heads ? fetch<T, N>(from + head * from_head + at) : Bits<T, N>{};
    }
  };
  const auto store_all = [&](const Bits<T, N>(&x)[HEADS], int64_t at) {
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
      const unsigned head = h * groups + group;
      if (head >= heads) break;
      if (to) store<T, N>(to + head * p.to.dim + at, x[h]);
      if (also) store<T, N>(also + head * p.to.dim + at, x[h]);
    }
  };
  Bits<T, N> low[HEADS], high[HEADS] = {};
  if (is_v || item >= work.turned) {
    const int64_t at = is_v ? item * N : 2 * p.to.table.pairs + (item - work.turned) * N;
    fetch_all(low, at);
    return store_all(low, at);
  }
  constexpr bool kOneVector = kPairsInVector<N, INTERLEAVED>;
  constexpr int P = kOneVector ? N / 2 : N;  // number of RoPE pairs per thread and head
  const unsigned pair = item * P, first = INTERLEAVED ? 2 * pair : pair,
                 second = INTERLEAVED ? first + 1 : pair + static_cast<unsigned>(p.to.table.pairs);
  fetch_all(low, first);
  if constexpr (!kOneVector) fetch_all(high, second);
  if (token >= 0) {
    float cos[P] = {}, sin[P] = {};
    angles<P, true>(p.to.table, p.to.positions[token], pair, cos, sin);
#pragma unroll
    for (int h = 0; h < HEADS; ++h) turn<T, N, INTERLEAVED>(low[h], high[h], cos, sin);
  }
  store_all(low, first);
  if constexpr (!kOneVector) store_all(high, second);
}

template <typename T, int N>
void launch(const KvCacheWrite& p, cudaStream_t stream) {
  KvCacheWriteWork work{.p = p};
  work.turned = static_cast<unsigned>((p.to.interleaved && N > 1 ? 2 : 1) * p.to.table.pairs / N);
  work.items = work.turned + static_cast<unsigned>((p.to.dim - 2 * p.to.table.pairs) / N);
  work.of_value = static_cast<unsigned>(p.to.dim / N);
  const int64_t places = std::max(p.tokens, p.rows);
  const auto run = [&](auto interleaved, auto heads) {
    constexpr int HEADS = decltype(heads)::value;
    const auto groups_of = [](int64_t count) { return static_cast<unsigned>((count + HEADS - 1) / HEADS); };
    work.groups = groups_of(p.to.heads);
    work.kv_groups = groups_of(p.to.kv_heads);
    const unsigned all = (work.groups + work.kv_groups) * work.items + work.kv_groups * work.of_value;
    work.width = std::min(all, kMaxThreads);
    work.tokens = kMaxThreads / work.width;
    const dim3 grid(static_cast<unsigned>((places + work.tokens - 1) / work.tokens),
                    (all + work.width - 1) / work.width);
    decoding::start<rotate_and_store<T, N, decltype(interleaved)::value, HEADS>>(
        work, grid, static_cast<int>(work.width * work.tokens), 0, true, stream);
  };
  const auto of_heads = [&](auto interleaved) {
    // With at least this number of tokens, one thread processes several heads. With fewer tokens there would be too few
    // threads, and each thread would wait for more loads.
    constexpr int64_t kManyTokens = 1024;
    if constexpr (N > 1) {
      if (places >= kManyTokens) return run(interleaved, std::integral_constant<int, 4>{});
    }
    run(interleaved, std::integral_constant<int, 1>{});
  };
  p.to.interleaved ? of_heads(std::true_type{}) : of_heads(std::false_type{});
}

}  // namespace

void kv_cache_write(const KvCacheWrite& p, cudaStream_t stream) {
  if (p.tokens + p.rows == 0 || p.to.heads + p.to.kv_heads == 0 || p.to.dim == 0) return;
  with_type(p.type, [&](auto zero) {
    using T = decltype(zero);
    constexpr int N = kWide<T>;
    const auto whole = [](auto... sizes) { return ((sizes % N == 0) && ...); };
    const bool wide = whole(p.to.dim, p.to.interleaved ? 2 * p.to.table.pairs : p.to.table.pairs, p.q_token, p.q_head,
                            p.k_token, p.k_head, p.v_token, p.v_head) &&
                      aligned(p.q) && aligned(p.k) && aligned(p.v) && aligned(p.to.q) && aligned(p.to.keys) &&
                      aligned(p.to.values) && aligned(p.gathered_keys) && aligned(p.gathered_values);
    wide ? launch<T, N>(p, stream) : launch<T, 1>(p, stream);
  });
}

}  // namespace lazy::ops::cuda
