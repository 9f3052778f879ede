// Decode kernel for one query row per kv head, with one block per row. The results are bitwise equal to the results of
// attend_tile (decode_kernels.cuh), but the code is specialized for this case. The scores, the weights computed from
// them and the partial sums of V use the same shared memory one after the other. The warps divide the keys of the tile
// among them, first to compute the scores, then to sum the rows of V. Few warps are resident per multiprocessor, so
// performance depends on the number of instructions and on how often a warp waits for memory or for a barrier.
#include <algorithm>

#include "attention/cuda/decode_list.cuh"
#include "attention/cuda/decode_products.cuh"
#include "attention/cuda/launchers.h"

namespace lazy::kernels::cuda::decoding {

namespace {

// Keys per part (for the scores), keys per piece (for the sum of V), and units of kPad keys per part. attend_tile
// divides the keys in the same way.
constexpr int kPart = 64, kPiece = 128, kUnits = kPart / kPad;

// Strides of pages and keys in units of 16 bytes, so that offsets fit in 32 bits.
struct RowShape {
  uint32_t k_page, k_token, v_page, v_token;
  int keys;  // number of keys whose scores fit in the shared memory, a multiple of kPiece
};
struct RowArguments {
  Params p;
  RowShape shape;
};
constexpr uint32_t kNowhere = ~0u;

__device__ float warp_largest(float x) {  // maximum over the warp; x must not be NaN
#ifdef __CUDA_ARCH__
  const auto ordered = [](int i) { return i ^ (i >> 31 & 0x7fffffff); };
  return __int_as_float(ordered(__reduce_max_sync(~0u, ordered(__float_as_int(x)))));
#else
  return warp_max(x);
#endif
}

// Forces the compiler to keep the value in a register instead of recomputing it.
template <typename N>
__device__ N keep(N x) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(N) == 8) {
    asm volatile("" : "+l"(x));
  } else if constexpr (std::is_same_v<N, float>) {
    asm volatile("" : "+f"(x));
  } else {
    asm volatile("" : "+r"(x));
  }
#endif
  return x;
}

template <int D, int WARPS, int STAGES>
constexpr int row_bytes(int keys) {
  return WARPS * (STAGES * kPad * D * 2 + kPiece * 4) + keys * 4 + keys / kPart * 8 + keys / kPad * 8;
}

}  // namespace

// Computes one output row per block (see the top of this file). Grid: (heads, sequences). BLOCKS: minimum number of
// blocks per multiprocessor. STAGES: number of units (kPad keys each) in a warp's ring buffer.
template <typename T, int D, PageAlignment PAGES, int WARPS, int BLOCKS, int STAGES>
__global__ void __launch_bounds__(32 * WARPS, BLOCKS) attend_row(const __grid_constant__ RowArguments given) {
  extern __shared__ __align__(16) char memory[];
  constexpr int kChunks = D / 8, kRowsAtOnce = 32 / kChunks, kCopies = kPad / kRowsAtOnce, kStage = kPad * D * 2;
  constexpr int kRing = STAGES * kStage;
  // This condition makes the ring-buffer stage of each unit in a part a compile-time constant.
  static_assert(kUnits % STAGES == 0);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  Params p = given.p;
  const RowShape& shape = given.shape;
  p.q_length = p.group = p.rows = p.tiles = 1;
  const int head = blockIdx.x, batch = blockIdx.y;

  char* const own = memory + warp * kRing;
  uint32_t* const list = reinterpret_cast<uint32_t*>(memory + WARPS * kRing) + warp * kPiece;
  float* const scores = reinterpret_cast<float*>(memory + WARPS * (kRing + kPiece * 4));
  // Table with two offsets per unit of kPad keys, in units of 16 bytes: x for its keys in K and y for its values in V.
  uint2* const table = reinterpret_cast<uint2*>(scores + shape.keys);
  float2* const part_sums = reinterpret_cast<float2*>(table + shape.keys / kPad);
  const uint32_t ring = keep(shared_address(own)), units_at = keep(shared_address(table));
  const uint64_t policy = read_once_policy();

  let_next_start();
  const Sequence sequence = read_sequence(p, batch);
  const int keys = sequence.end - sequence.first, units = (keys + kPad - 1) / kPad;
  const int parts = (keys + kPart - 1) / kPart, pieces = (keys + kPiece - 1) / kPiece;
  const Keys seen = visible(p, sequence.length, 0);
  // Range of visible keys. These and all following key indices in the kernel are relative to sequence.first.
  const int seen_from = seen.begin - sequence.first;
  const unsigned seen_count = static_cast<unsigned>(seen.end - seen.begin);

  // Without tau, the weights of all keys are nonzero except for masking and underflow. After its last
  // part of K, each warp therefore prefetches the beginning of V for its first piece without waiting for the weights.
  const bool values_ahead = !takes_tau(p.normalizer);

  // Fill the table of unit offsets. The first entries are for the units whose V the warp prefetches. The next entries
  // are for the units of the warp's parts (every WARPS-th part). Two warps may write the same entries; this duplicate
  // work is needed because no barrier precedes the use of the entries.
  bool bad = false;
  const int ahead = values_ahead ? STAGES : 0;
  const auto unit_of = [](int part, int n) { return (part + n / kUnits * WARPS) * kUnits + n % kUnits; };
#pragma unroll 1
  for (int n = lane - ahead;; n += 32) {
    const int unit = n < 0 ? warp * (kPiece / kPad) + n + ahead : unit_of(warp, n);
    if (n < 0 && unit >= units) continue;
    if (unit >= units) break;
    const int key = sequence.first + unit * kPad;
    uint2 at;
    if constexpr (PAGES == PageAlignment::none) {
      at = {static_cast<uint32_t>(batch) * shape.k_page + static_cast<uint32_t>(key) * shape.k_token,
            static_cast<uint32_t>(batch) * shape.v_page + static_cast<uint32_t>(key) * shape.v_token};
    } else {
      const int of_table = p.page_size.divide(key), row = key - of_table * p.page_size.value;
      const int64_t page = __ldg(p.block_table + batch * p.table_width + of_table);
      at = {static_cast<uint32_t>(page) * shape.k_page + static_cast<uint32_t>(row) * shape.k_token,
            static_cast<uint32_t>(page) * shape.v_page + static_cast<uint32_t>(row) * shape.v_token};
      if (page < 0 || page >= p.pages) at = {kNowhere, kNowhere}, bad = true;
    }
    table[unit] = at;
  }
  __syncwarp();
  bad = __any_sync(~0u, bad);

  // Functions that copy units of kPad keys. lanes_place returns the address of the lane's first 16 bytes in K or V.
  // `ask` starts the asynchronous copy of a unit of K or V to a stage of the ring buffer. Chunk number `chunk` (16
  // bytes) of row r is stored at position chunk ^ r % 8 to avoid bank conflicts.
  const auto lanes_place = [&](const Tensor& cache) {
    return static_cast<const char*>(cache.data) +
           (head * cache.head + lane / kChunks * cache.token + lane % kChunks * 8) * sizeof(T);
  };
  const auto step_of = [](const Tensor& cache) {
    return keep(static_cast<int64_t>(kRowsAtOnce * cache.token * sizeof(T)));
  };
  const char *const k = lanes_place(p.k), *const v_rows = lanes_place(p.v);
  const int64_t k_step = step_of(p.k), v_step = step_of(p.v);
  uint32_t places[8 / kRowsAtOnce];  // where the lane's chunks are stored; the swizzle repeats after eight rows
#pragma unroll
  for (int i = 0; i < 8 / kRowsAtOnce; ++i) {
    const int row = kRowsAtOnce * i + lane / kChunks;
    places[i] = keep(ring + row * D * 2 + (lane % kChunks ^ row) * 16);
  }
  const auto ask = [&](int unit, uint32_t stage, bool of_values = false) {
    if (unit >= units) return;
    const uint32_t at = load_word(units_at + unit * 8 + (of_values ? 4 : 0));
    const char* const begin = of_values ? v_rows : k;
    const int64_t step = of_values ? v_step : k_step;
    const char* from = begin + uint64_t{at} * 16;
    if (at != kNowhere && kPad * unit + kPad <= keys) {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        copy_once(places[i % (8 / kRowsAtOnce)] + i * kRowsAtOnce / 8 * 8 * D * 2 + stage, from, true, policy);
        from += step;
      }
    } else {
      int row = lane / kChunks;
      const int rows = at == kNowhere ? 0 : keys - kPad * unit;
#pragma unroll 1
      for (int i = 0; i < kCopies; ++i) {
        copy_once(ring + stage + row * D * 2 + (lane % kChunks ^ row % 8) * 16, row < rows ? from : begin, row < rows,
                  policy);
        from += step, row += kRowsAtOnce;
      }
    }
  };
  // The previous kernel may write the newest key. Copies of all units before the unit with this key start immediately;
  // the copy of this unit starts after wait_for_launcher(). Lengths and block table are inputs of the whole decode step
  // and are already valid.
  int asked = 0;
#pragma unroll 1
  for (; asked < STAGES && unit_of(warp, asked) < units - 1; ++asked) {
    ask(unit_of(warp, asked), asked * kStage);
    commit_copies();
  }
  wait_for_launcher();
#pragma unroll 1
  for (; asked < STAGES; ++asked) {
    ask(unit_of(warp, asked), asked * kStage);
    commit_copies();
  }

  uint32_t q[D / 16][2];
  {
    constexpr int kWords = D / 64;
    const auto* row =
        reinterpret_cast<const uint32_t*>(static_cast<const T*>(p.q.data) + batch * p.q.batch + head * p.q.head);
    uint32_t word[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = __ldcg(row + 32 * i + lane);
#pragma unroll
    for (int i = 0; i < D / 8; ++i) q[i / 2][i % 2] = __shfl_sync(~0u, word[i / 8], i % 8 * 4 + c);
  }

  // Returns the i-th key of a part whose score this lane completes. The assignment is the same as in attend_tile: 64
  // keys per iteration if D is 64, otherwise two iterations of 32 keys.
  const auto lanes_key = [&](int i) { return D == 64 ? 16 * c + 8 * i + g : 32 * i + 8 * c + g; };
  const Keys simple = [&] {  // visible keys that have neither a distance bias nor an ALiBi bias
    const int here = sequence.length - 1;
    int end = min(seen.end, here - p.bias_window + 1);
    if (p.alibi_slopes) end = seen.begin;
    return Keys{seen.begin - sequence.first, end - sequence.first};
  }();
  const uint32_t fragments = ring + lane % 16 * D * 2;
#pragma unroll 1
  for (int part = warp; part < parts; part += WARPS) {
    const int begin = part * kPart;
    const bool plain = begin >= simple.begin && begin + kPart <= simple.end;
    float bias[2] = {};
    if (!plain && p.bias_window > 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int distance = abs(sequence.length - 1 - sequence.first - begin - lanes_key(i));
        if (distance < p.bias_window) bias[i] = __ldg(p.distance_bias + int64_t{head} * p.bias_window + distance);
      }
    }
    float x[2] = {};
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      const uint32_t from = j % STAGES * kStage;
      wait_for_copies<STAGES - 1>();
      __syncwarp();
      float dot[4] = {};
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
        uint32_t a[4];
        load_matrices(a, fragments + from + (2 * n + lane / 16 ^ lane % 8) * 16);
        mma<T>(dot, a, q[n][0], q[n][1]);
      }
      if constexpr (D == 64) {
        if (c == j) x[0] = dot[0], x[1] = dot[2];
      } else {
        if (c / 2 == j % 2) x[j / 2] = c % 2 ? dot[2] : dot[0];
      }
      __syncwarp();
      const int n = j + STAGES;
      const bool of_values = n >= kUnits && part + WARPS >= parts && values_ahead;
      ask(of_values ? warp * (kPiece / kPad) + n % kUnits : unit_of(part, n), from, of_values);
      commit_copies();
    }
    if (p.softcap) {
#pragma unroll
      for (int i = 0; i < 2; ++i) x[i] = capped(p.softcap, x[i]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) x[i] = p.scale * x[i] + bias[i];
    if (p.alibi_slopes) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int distance = abs(sequence.length - 1 - sequence.first - begin - lanes_key(i));
        x[i] -= p.alibi_slopes[head] * static_cast<float>(distance);
      }
    }
    if (bad) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = begin + lanes_key(i);
        if (key < keys && table[key / kPad].x == kNowhere) x[i] = NAN;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) scores[begin + lanes_key(i)] = x[i];
    if (!plain) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (static_cast<unsigned>(begin + lanes_key(i) - seen_from) >= seen_count) x[i] = -INFINITY;
      }
    }
    const float most = fmaxf(fmaxf(-INFINITY, x[0]), x[1]);
    const auto base = [](float largest) { return largest == -INFINITY ? 0 : largest; };
    float all = __expf(x[0] - base(most)) + __expf(x[1] - base(most));
    const float largest = warp_largest(most);
    all = __fmul_rn(all, __expf(most - base(largest)));
#pragma unroll
    for (int step = 1; step < 32; step *= 2) all += __shfl_xor_sync(~0u, all, step);
    if (lane == 0) part_sums[part] = {largest, all};
  }
  RowTile t{};
  t.batch = batch, t.kv_head = head, t.rows = 1, t.sequence = sequence;
  RowState state = make_state(p, t, 0);
  __syncthreads();

  if (warp < pieces) {
    float2 all = lane < parts ? part_sums[lane] : float2{-INFINITY, 0};
    if (parts > 32) {
      all = merge_loaded_parts(
          [&](int n, float2(&x)[kPartsAtOnce]) {
#pragma unroll
            for (int i = 0; i < kPartsAtOnce; ++i) {
              x[i] = n + 32 * i < parts ? part_sums[n + 32 * i] : float2{-INFINITY, 0};
            }
          },
          parts, lane, 32);
    }
    // Lanes beyond the number of parts have empty parts. Merging an empty part does not change the result, so merge
    // steps in which all second operands are empty are skipped.
    const int lanes = min(parts, 32);
#pragma unroll 1
    for (int step = 16; step > 0; step /= 2) {
      if (lanes > step) all = merge(all, {__shfl_xor_sync(~0u, all.x, step), __shfl_xor_sync(~0u, all.y, step)});
    }
    all = {__shfl_sync(~0u, all.x, 0), __shfl_sync(~0u, all.y, 0)};
    if (takes_sink(p.normalizer)) all = merge(all, {p.sink[head], 1});
    state.largest = all.x;
    state.inverse = 1 / all.y;
    if (p.lse && threadIdx.x == 0) {
      p.lse[batch * p.heads + head] = state.begin < state.end ? all.x + logf(all.y) : -INFINITY;
    }

    // The rows of V with nonzero weight are copied to the ring buffer that was used for the keys.
    static_assert(STAGES % 2 == 0 && STAGES <= kPiece / kPad);
    const char* const v = keep(static_cast<const char*>(p.v.data) + (head * p.v.head + lane % kChunks * 8) * sizeof(T));
    uint32_t fragments[D / 16];
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      fragments[n] = keep(ring + (lane / 16 * 8 + lane % 8) * D * 2 + (2 * n + lane / 8 % 2 ^ lane % 8) * 16);
    }
    const uint32_t list_at = keep(shared_address(list)), from_list = keep(list_at + lane / kChunks * 4);
    const uint32_t before = keep((1u << lane) - 1), row_of_unit = keep(lane % kPad * shape.v_token);
#pragma unroll 1
    for (int piece = warp; piece < pieces; piece += WARPS) {
      float* const kept = scores + piece * kPiece;
      // Shared address of the weights. Each weight is a sum of two 16-bit numbers, a high part and a low part; both
      // overwrite the scores.
      const uint32_t high = keep(shared_address(kept));
      float weight[kPiece / 32];
#pragma unroll
      for (int i = 0; i < kPiece / 32; ++i) weight[i] = kept[32 * i + lane];
      const int first = piece * kPiece + lane - seen_from;
#pragma unroll
      for (int i = 0; i < kPiece / 32; ++i) {
        const float x = keep(softmax_weight(state, weight[i]).weight);
        weight[i] = static_cast<unsigned>(first + 32 * i) < seen_count ? x : 0;
      }
      __syncwarp();
      int listed = 0;
      // Whether the units that were prefetched are the first units of the list. This requires that all of their keys
      // have a nonzero weight.
      bool asked_for = values_ahead && piece == warp;
      const uint32_t of_values = units_at + (piece * kPiece + lane) / kPad * 8 + 4;
#pragma unroll
      for (int i = 0; i < kPiece / 32; ++i) {
        const bool needed = !(weight[i] == 0);
        const unsigned mask = __ballot_sync(~0u, needed);
        if (needed) {
          const int n = listed + __popc(mask & before);
          const uint32_t at = load_word(of_values + 16 * i);
          uint32_t upper, lower;
          split<T>(std::is_same_v<T, __half> ? weight[i] * state.weight_scale : weight[i], 0, upper, lower);
          store_word(list_at + 4 * n, at == kNowhere ? kNowhere : at + row_of_unit);
          store_half(high + 2 * n, upper);
          store_half(high + 2 * kPiece + 2 * n, lower);
        }
        listed += __popc(mask);
        if (32 * i < STAGES * kPad) asked_for = asked_for && mask == ~0u;
      }
      const int used = (listed + kPad - 1) / kPad;
      if (lane < kPad && listed + lane < used * kPad) {
        store_word(list_at + 4 * (listed + lane), kNowhere);
        store_half(high + 2 * (listed + lane), 0);
        store_half(high + 2 * (kPiece + listed + lane), 0);
      }
      __syncwarp();
      static_assert((STAGES & (STAGES - 1)) == 0);
      const auto copy = [&](int unit, uint32_t stage) {
        if (unit < used) {
          uint32_t at[kCopies];
#pragma unroll
          for (int i = 0; i < kCopies; ++i) at[i] = load_word(from_list + (unit * kPad + i * kRowsAtOnce) * 4);
#pragma unroll
          for (int i = 0; i < kCopies; ++i) {
            copy_once(places[i % (8 / kRowsAtOnce)] + i * kRowsAtOnce / 8 * 8 * D * 2 + stage, v + uint64_t{at[i]} * 16,
                      at[i] != kNowhere, policy);
          }
        }
        commit_copies();
      };
      if (!asked_for) {
        wait_for_copies<0>();  // wait for pending prefetches, which use the same ring buffer
#pragma unroll 1
        for (int unit = 0; unit < STAGES; ++unit) copy(unit, unit * kStage);
      }
      float sum[D / 16][4] = {};
      // In the matrix product, column 0 of B contains the high parts of the weights and column 4 the low parts.
      const uint32_t weights = (g < 4 ? high : high + 2 * kPiece) + 4 * c;
      uint32_t stage = 0;
#pragma unroll 1
      for (int unit = 0; unit < used; ++unit) {
        uint32_t b[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          b[h] = load_word(weights + unit * kPad * 2 + 16 * h);
          if (g % 4 != 0) b[h] = 0;
        }
        wait_for_copies<STAGES - 1>();
        __syncwarp();
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
          uint32_t a[4];
          load_matrices_transposed(a, fragments[n] + stage);
          mma<T>(sum[n], a, b[0], b[1]);
        }
        __syncwarp();
        copy(unit + STAGES, stage);
        stage = (stage + kStage) % kRing;
      }
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float x = sum[n][2 * h] + __shfl_xor_sync(~0u, sum[n][2 * h], 2);
          if (c == 0) kept[16 * n + 8 * h + g] = x;  // the sums of the piece overwrite its weights
        }
      }
      __syncwarp();
    }
  } else if (p.lse && threadIdx.x == 0) {
    p.lse[batch * p.heads + head] = sequence.length < 0 ? NAN : -INFINITY;
  }
  __syncthreads();
  const int groups = kSumThreads / D, spans = max((pieces + kWarps - 1) / kWarps, 1);
  for (int d = threadIdx.x; d < D; d += 32 * WARPS) {
    float x = 0;
#pragma unroll 1
    for (int group = 0; group < min(groups, spans); ++group) {
      float of_group = 0;
#pragma unroll 1
      for (int span = group; span < spans; span += groups) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kWarps; ++i) {
          const int piece = span * kWarps + i;
          sum += piece < pieces ? scores[piece * kPiece + d] : 0;
        }
        of_group += std::is_same_v<T, __half> ? sum / state.weight_scale : sum;
      }
      x += of_group;
    }
    store_out(p, batch, head, 0, d, sequence, x);
  }
}

namespace {

int keys_of(const Params& p) { return (p.columns + kPiece - 1) / kPiece * kPiece; }

template <typename T, int D, PageAlignment PAGES, int WARPS, int BLOCKS, int STAGES>
void launch_row(const Params& p, cudaStream_t stream) {
  const auto pieces_of_16 = [](int64_t elements) { return static_cast<uint32_t>(elements / 8); };
  const RowArguments arguments{
      p,
      {pieces_of_16(p.k.batch), pieces_of_16(p.k.token), pieces_of_16(p.v.batch), pieces_of_16(p.v.token), keys_of(p)}};
  start<attend_row<T, D, PAGES, WARPS, BLOCKS, STAGES>>(
      arguments, dim3(static_cast<unsigned>(p.heads), static_cast<unsigned>(p.batch)), 32 * WARPS,
      row_bytes<D, WARPS, STAGES>(arguments.shape.keys), p.after_kernel, stream);
}

template <typename T, int D, PageAlignment PAGES>
void launch_of_warps(const Params& p, cudaStream_t stream) {
  const int multiprocessors = gpu_attribute(cudaDevAttrMultiProcessorCount);
  // If the GPU can run the blocks of all rows concurrently, use 8 warps per block, otherwise 4.
  p.batch* p.heads <= 4 * multiprocessors ? launch_row<T, D, PAGES, 8, D == 64 ? 4 : 2, 2>(p, stream)
                                          : launch_row<T, D, PAGES, 4, 4, D == 64 ? 4 : 2>(p, stream);
}

}  // namespace

bool serves_decode_row(const Params& p) {
  const auto small = [&](const Tensor& cache) {  // whether all offsets, in units of 16 bytes, fit in 32 bits
    return std::max<int64_t>(p.pages, p.batch) * cache.batch / 8 < kNowhere &&
           int64_t{p.capacity} * cache.token / 8 < kNowhere;
  };
  return p.by_tile && p.rows == 1 && in_family<NormalizerFamily::exponential>(p.normalizer) &&
         p.head_dim == p.value_dim && (p.head_dim == 64 || p.head_dim == 128) && p.q_aligned && p.part == kPart &&
         p.scan == kPiece && p.batch <= 65535 && small(p.k) && small(p.v) &&
         std::max(row_bytes<64, 8, 2>(keys_of(p)), row_bytes<128, 8, 2>(keys_of(p))) <= kSharedMost;
}

void decode_row(const Params& p, cudaStream_t stream) {
  with_half_type<__nv_bfloat16, __half>(p.dtype, [&](auto type) {
    using T = decltype(type);
    const auto of_size = [&]<int D>() {
      p.pages_of == PageAlignment::none ? launch_of_warps<T, D, PageAlignment::none>(p, stream)
                                        : launch_of_warps<T, D, PageAlignment::units>(p, stream);
    };
    p.head_dim == 64 ? of_size.template operator()<64>() : of_size.template operator()<128>();
  });
}

}  // namespace lazy::kernels::cuda::decoding
