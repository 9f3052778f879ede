// Portable forward of sparsemax and entmax-1.5. The weights are max(x_j - t, 0)^a with a = 1 or 2, and the threshold t
// is defined by sum of weights = 1. During a sweep over the keys, two lower bounds of t are known: the largest score so
// far minus one, and the threshold of the keys so far. The first kernel sweeps over the keys only once and lists the
// few keys above the current lower bound. Newton's method and the weighted sum of V only use the lists. If a row has
// more candidates than its list can hold, a second kernel processes all rows of the same warp with several sweeps over
// the keys: one sweep per Newton step, and one for the weighted sum.
#pragma once
#include <algorithm>

#include "attention/cuda/portable_forward_pointwise.cuh"

namespace lazy::kernels::cuda::portable {

// A key whose weight may be nonzero. Once the threshold is known, `score` is overwritten with the weight.
struct alignas(8) Candidate {
  float score;
  int key;
};

// Tile shape of both kernels in this file. Each warp has 16 rows; WARPS is the number of warps per block.
template <int D, int WARPS>
struct ThresholdShape {
  static constexpr int MI = 1, N = D <= 64 ? 64 : 32, warps = WARPS, threads = 32 * warps, M = 16 * warps;
  static constexpr int bias_entries = M + N;
};

template <int D>
struct ListShape : ThresholdShape<D, 8> {
  using S = ThresholdShape<D, 8>;
  // Entries per list. The number is 4 modulo 8, so that the lists of a warp's rows begin in different banks.
  static constexpr int capacity = 60;
  // Layout of shared memory: lists, keys, bias tables. The lists overwrite the queries, which have been loaded to
  // registers by then.
  static constexpr int row_bytes = std::max<int>(capacity * sizeof(Candidate), D * 2), tile_bytes = 2 * S::N * D * 2;
  static constexpr int bytes = S::M * row_bytes + tile_bytes + 2 * S::bias_entries * 4;
};

template <int D>
using SweepShape = ThresholdShape<D, 4>;

// Adds the terms of a query-key pair, with z = x - t, to the sum of weights and to `slope`. The derivative of the sum
// with respect to t is -slope (sparsemax) or -2 slope (entmax15).
__device__ inline void add_terms(float z, bool squared, float& slope, float& sum) {
  z = fmaxf(z, 0);
  const float x = squared ? z : z > 0 ? 1.0f : 0.0f;
  slope += x;
  sum += x * z;
}

// Performs one step of Newton's method for the threshold, `value`. `slope` and `sum` are the calling lane's shares of
// the sums of add_terms(). The sum of weights is convex and decreasing in the threshold, so that steps from below the
// root increase towards it and never pass it, except by rounding. `low` receives the low-order part of the threshold.
// Returns whether the threshold increased.
__device__ inline bool step_up(float slope, float sum, bool squared, float& value, float& low) {
  const float falls = quad_sum(slope) * (squared ? 2 : 1), all = quad_sum(sum);
  if (falls == 0) return false;
  // The increase of the threshold is computed first and then added. It depends on the sum of the weights, which is near
  // one for scores of any size, so it is precise.
  const float by = (all - 1) / falls, next = value + by;
  const bool rose = next > value;
  low = rose ? 0 : by;
  value = fmaxf(next, value);
  return rose;
}
// Maximum numbers of Newton steps: kMaxSteps to compute the threshold of a row, kCutSteps to compute a tighter lower
// bound of the threshold when a list is full.
constexpr int kMaxSteps = 64, kCutSteps = 8;

// Computes the threshold by Newton's method, with one sweep over the keys per step. On input, out.value is below the
// row's threshold, relative to its largest score. Every sweep recomputes the scores, so that memory is linear in the
// sequence lengths. `open`: whether the threshold of at least one row of the warp still changes.
template <typename T, int D, typename S>
__device__ void find_threshold(RowSweep<T, D, S>& b, bool squared, RowStatistics<S::MI>& out, bool open) {
  constexpr int MI = S::MI, NT = S::N / 16;
  for (int step = 0; step < kMaxSteps; ++step) {
    float slope[MI][2] = {}, sum[MI][2] = {};
    b.sweep(false, [&](int key, int stage) {
      if (!open) return;
      float s[MI][2 * NT][4];
      const float c = b.scores(s, key, stage);
#pragma unroll
      for (int m = 0; m < MI; ++m) {
#pragma unroll
        for (int n = 0; n < 2 * NT; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            add_terms(fmaf(s[m][n][e], c, -out.largest[m][e / 2]) - out.value[m][e / 2], squared, slope[m][e / 2],
                      sum[m][e / 2]);
          }
        }
      }
    });
    if (open) {
      bool rose = false;
#pragma unroll
      for (int m = 0; m < MI; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) rose |= step_up(slope[m][h], sum[m][h], squared, out.value[m][h], out.low[m][h]);
      }
      open = __any_sync(~0u, rose);
    }
    if (!__syncthreads_or(open)) break;
  }
}

// State of a row, equal in the four lanes that share its accumulators. `floor` is a lower bound of the row's threshold,
// or -inf before the first key.
struct ListedRow {
  Candidate* list;
  int count = 0;
  float largest = -INFINITY, floor = -INFINITY;

  // Raises the lower bound to largest + value, minus a margin for the rounding of the scores, their maximum and the
  // sums of Newton's method.
  __device__ void raise_floor(float value) {
    constexpr float slack = 4e-6f;
    floor = fmaxf(floor, largest + value - slack * (1 + fabsf(largest)));
  }
  // Returns the start value of Newton's method, relative to the largest score. It is at least -1, because the threshold
  // is at least the largest score minus one.
  __device__ float start() const { return fmaxf(floor - largest, -1); }

  // Calls add_terms() for this lane's share of the list entries (every fourth entry).
  __device__ void add_list(int lane, float value, bool squared, float& slope, float& sum) const {
    for (int n = lane % 4; n < count; n += 4) add_terms((list[n].score - largest) - value, squared, slope, sum);
  }

  // Removes the entries whose weight is zero and preserves the order of the remaining entries. All lanes of the warp
  // must call this function.
  template <typename Alive>
  __device__ void compact(int lane, const Alive& alive) {
    int kept = 0;
    for (int base = 0; __any_sync(~0u, base < count); base += 4) {
      const int n = base + lane % 4;
      const Candidate c = n < count ? list[n] : Candidate{-INFINITY, 0};
      const bool keep = n < count && alive(c.score);
      const unsigned quad = __ballot_sync(~0u, keep) >> lane / 4 * 4 & 15;
      __syncwarp();  // all lanes must have read their entries before any entry is moved
      if (keep) list[kept + __popc(quad & ((1 << lane % 4) - 1))] = c;
      kept += __popc(quad);
    }
    __syncwarp();
    count = kept;
  }
};

// Loads the warp's queries from shared memory, to which RowSweep::start() has copied them, to registers.
template <typename T, int D, typename S>
__device__ void keep_queries(const RowSweep<T, D, S>& b, uint32_t (&q)[D / 16][4]) {
  copies_commit();
  copies_wait<0>();
  __syncthreads();
#pragma unroll
  for (int k = 0; k < D / 16; ++k) load_matrices(q[k], b.sq + at<D>(b.warp_row + b.lane % 16, 2 * k + b.lane / 16));
}

// Computes the scores of a tile of keys like RowSweep::scores, but with the queries q in registers.
template <typename T, int D, typename S>
__device__ float scores_of(RowSweep<T, D, S>& b, const uint32_t (&q)[D / 16][4], float (&s)[1][S::N / 8][4], int key,
                           int stage) {
  const int lane = b.lane;
  clear(s);
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
#pragma unroll
    for (int n = 0; n < S::N / 16; ++n) {
      uint32_t y[4];
      load_matrices(y, b.sk + stage * S::N * D * 2 + at<D>(16 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
      mma<T>(s[0][2 * n], q[k], y[0], y[1]);
      mma<T>(s[0][2 * n + 1], q[k], y[2], y[3]);
    }
  }
  return b.finish_scores(s, key, stage);
}

// Positions of a lane's new candidates in its two lists, and the number of new candidates in all four lanes of each
// row.
struct NewCandidates {
  int slot[2], found[2];

  // Counts the candidates in s and computes their positions in the lists. chosen(h, score) returns whether a score of
  // row h is a candidate. Returns whether all lists of the warp have enough capacity.
  template <int N, typename Chosen>
  __device__ bool place(int lane, const float (&s)[N][4], const ListedRow (&rows)[2], int capacity,
                        const Chosen& chosen) {
    bool fits = true;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int mine = 0;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        mine += (chosen(h, s[n][2 * h]) ? 1 : 0) + (chosen(h, s[n][2 * h + 1]) ? 1 : 0);
      }
      const int next = __shfl_xor_sync(~0u, mine, 1), pair = mine + next;
      const int others = __shfl_xor_sync(~0u, pair, 2);
      slot[h] = rows[h].count + (lane & 1 ? next : 0) + (lane & 2 ? others : 0);
      found[h] = pair + others;
      fits &= rows[h].count + found[h] <= capacity;
    }
    return __all_sync(~0u, fits) != 0;
  }
  // Adds the new candidates to the lists. value(h, score) returns the value to store.
  template <int N, typename Chosen, typename Value>
  __device__ void append(int lane, const float (&s)[N][4], ListedRow (&rows)[2], int key, const Chosen& chosen,
                         const Value& value) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      Candidate* to = rows[h].list + slot[h];
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float x = s[n][2 * h + e];
          if (chosen(h, x)) *to++ = {value(h, x), key + 8 * n + 2 * (lane % 4) + e};
        }
      }
      rows[h].count += found[h];
    }
  }
};

// Computes the outputs from the lists of a warp's rows, in which the weights have replaced the scores. D / 8 lanes
// process a row, with 8 columns per lane.
template <typename T, int D, typename S>
__device__ void sum_listed(const RowSweep<T, D, S>& b, const ListedRow (&rows)[2], const Candidate* lists) {
  constexpr int lanes = D / 8, groups = 32 / lanes, ahead = 4;
  const Params& p = b.p;
  const int column = b.lane % lanes * 8;
  T* const out = static_cast<T*>(p.out.data) + q_offset(p.out, b.t, b.t.head, b.t.first) + column;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    for (int first = 0; first < 8; first += groups) {
      const int of_eight = first + b.lane / lanes, row = b.warp_row + 8 * h + of_eight;
      const int count = __shfl_sync(~0u, rows[h].count, 4 * of_eight);
      const Candidate* list = lists + row * S::capacity;
      float sum[8] = {};
      for (int base = 0; base < count; base += ahead) {
        uint4 values[ahead];
        float weights[ahead];
#pragma unroll
        for (int n = 0; n < ahead; ++n) {
          values[n] = {};
          weights[n] = 0;
          if (base + n < count) {
            const Candidate c = list[base + n];
            weights[n] = c.score;
            values[n] = *reinterpret_cast<const uint4*>(b.v + c.key * p.v.token + column);
          }
        }
#pragma unroll
        for (int n = 0; n < ahead; ++n) {
          const uint32_t pairs[4] = {values[n].x, values[n].y, values[n].z, values[n].w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 v = unpack<T>(pairs[i]);
            sum[2 * i] = fmaf(weights[n], v.x, sum[2 * i]);
            sum[2 * i + 1] = fmaf(weights[n], v.y, sum[2 * i + 1]);
          }
        }
      }
      if (b.t.first + row < b.t.q_length) {
        *reinterpret_cast<uint4*>(out + row * p.out.token) = {pack<T>(sum[0], sum[1]), pack<T>(sum[2], sum[3]),
                                                              pack<T>(sum[4], sum[5]), pack<T>(sum[6], sum[7])};
      }
    }
  }
}

// If a list of a warp overflows, the warp marks all of its rows for the second kernel: it writes 16 bytes to the
// beginning of each row of `out`, which are kMark (twice), the maximum score, and a lower bound of the threshold
// relative to the maximum. kMark consists of two 16-bit NaNs that no conversion from fp32 produces, so it differs from
// every output.
constexpr uint32_t kMark = 0x7fa57fa5;

template <typename T, int D, typename S>
__device__ uint4* marked_row(const RowSweep<T, D, S>& b, int h) {
  return reinterpret_cast<uint4*>(static_cast<T*>(b.p.out.data) + q_offset(b.p.out, b.t, b.t.head, b.row(0, h)));
}

template <typename T, int D>
__global__ void __launch_bounds__(ListShape<D>::threads, 2) forward_lists(const Params p, int tiles) {
  using S = ListShape<D>;
  constexpr int N = S::N, NT = N / 16;
  extern __shared__ __align__(128) char memory[];
  RowSweep<T, D, S> b{p, score_unit<NormalizerFamily::threshold>(p)};
  if (!b.start(memory, S::M * (S::row_bytes - D * 2), tiles)) return;
  // This kernel has no values in shared memory, so the tables of biases directly follow the keys.
  b.add = reinterpret_cast<float*>(memory + S::M * S::row_bytes + S::tile_bytes);
  const int lane = b.lane;
  const bool squared = p.normalizer == Normalizer::entmax15;
  Candidate* const lists = reinterpret_cast<Candidate*>(memory);

  uint32_t q[D / 16][4];  // the queries are kept in registers, because the lists overwrite them in shared memory
  keep_queries(b, q);

  ListedRow rows[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    rows[h].list = lists + (b.row(0, h) - b.t.first) * S::capacity;
    // The scores of rows that do not exist are not masked. No score is above this floor, so they list no keys.
    if (b.row(0, h) >= b.t.q_length) rows[h].floor = INFINITY;
  }
  bool overflowed = false;  // whether a row of the warp has more candidates than its list can hold
  b.sweep(false, [&](int key, int stage) {
    if (!__any_sync(~0u, max(b.keys[0][0].end, b.keys[0][1].end) > key)) return;
    float s[1][2 * NT][4];
    const float c = scores_of(b, q, s, key, stage), inverse = __fdividef(1.0f, c);
    float most[2];
    bool any = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      most[h] = -INFINITY;
#pragma unroll
      for (int n = 0; n < 2 * NT; ++n) most[h] = max_nan(most[h], max_nan(s[0][n][2 * h], s[0][n][2 * h + 1]));
      any |= !(most[h] <= rows[h].floor * inverse);
    }
    if (!__any_sync(~0u, any)) return;

    bool spoilt = false;  // whether a score is NaN or +infinity; the second kernel then processes the row
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = max_nan(most[h], __shfl_xor_sync(~0u, most[h], 1));
      top = max_nan(top, __shfl_xor_sync(~0u, top, 2)) * c;
      spoilt |= !(top < INFINITY);
      rows[h].largest = fmaxf(rows[h].largest, top);
      rows[h].raise_floor(-1);
    }
    overflowed |= __any_sync(~0u, spoilt) != 0;
    if (overflowed) return;  // after an overflow, only the maximum of the scores is needed
    float least[2] = {};
    NewCandidates fresh;
    auto chosen = [&](int h, float x) { return x > least[h]; };
    auto place = [&] {
      least[0] = rows[0].floor * inverse;
      least[1] = rows[1].floor * inverse;
      return fresh.place(lane, s[0], rows, S::capacity, chosen);
    };
    for (bool cut = false; !place(); cut = true) {
      overflowed = cut;
      if (overflowed) return;
      // Computes the threshold of the keys so far, which is a tighter lower bound, and removes the entries below it.
      float value[2] = {rows[0].start(), rows[1].start()}, low[2];
      for (int step = 0; step < kCutSteps; ++step) {
        bool rose = false;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float slope = 0, sum = 0;
          rows[h].add_list(lane, value[h], squared, slope, sum);
#pragma unroll
          for (int n = 0; n < 2 * NT; ++n) {
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; ++e) {
              add_terms((s[0][n][e] * c - rows[h].largest) - value[h], squared, slope, sum);
            }
          }
          rose |= step_up(slope, sum, squared, value[h], low[h]);
        }
        if (!__any_sync(~0u, rose)) break;
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        rows[h].raise_floor(value[h]);
        rows[h].compact(lane, [&](float x) { return x > rows[h].floor; });
      }
    }
    fresh.append(lane, s[0], rows, key, chosen, [&](int, float x) { return x * c; });
  });
  __syncwarp();

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (rows[h].largest == -INFINITY) rows[h].largest = 0;  // the row sees no key
  }
  if (overflowed) {
    if (lane % 4 == 0) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (b.row(0, h) >= b.t.q_length) continue;
        *marked_row<T, D>(b, h) = {kMark, kMark, __float_as_uint(rows[h].largest), __float_as_uint(rows[h].start())};
      }
    }
    return;
  }
  float value[2] = {rows[0].start(), rows[1].start()}, low[2] = {};
  for (int step = 0; step < kMaxSteps; ++step) {
    bool rose = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float slope = 0, sum = 0;
      rows[h].add_list(lane, value[h], squared, slope, sum);
      rose |= step_up(slope, sum, squared, value[h], low[h]);
    }
    if (!__any_sync(~0u, rose)) break;
  }
  float lse[1][2], first[1][2] = {}, total[1][2] = {}, alive[1][2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    ListedRow& row = rows[h];
    auto above = [&](float x) { return ((x - row.largest) - value[h]) - low[h]; };
    row.compact(lane, [&](float x) { return above(x) > 0; });
    for (int n = lane % 4; n < row.count; n += 4) {
      const float z = above(row.list[n].score), weight = squared ? z * z : z;
      row.list[n].score = weight;
      total[0][h] += weight;
      if (row.list[n].key == 0) first[0][h] = weight;
    }
    first[0][h] = quad_sum(first[0][h]);
    if (lane % 4 == 0) alive[0][h] = static_cast<float>(row.count);
    const bool empty = b.keys[0][h].begin >= b.keys[0][h].end;
    lse[0][h] = empty ? -INFINITY : row.largest + (value[h] + low[h]);
  }
  __syncwarp();
  finish_statistics(b, lse, first, total, alive);
  sum_listed(b, rows, lists);
}

// Second kernel: processes the rows that warps of the first kernel have marked because a list overflowed.
template <typename T, int D>
__global__ void __launch_bounds__(SweepShape<D>::threads, 3) forward_sweeps(const Params p, int tiles) {
  using S = SweepShape<D>;
  extern __shared__ __align__(128) char memory[];
  RowSweep<T, D, S> b{p, score_unit<NormalizerFamily::threshold>(p)};
  const bool found = b.find(tiles);
  RowStatistics<1> statistics{};
  bool marked = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!found || b.row(0, h) >= b.t.q_length) continue;
    const uint4 mark = *marked_row<T, D>(b, h);
    marked |= mark.x == kMark && mark.y == kMark;
    statistics.largest[0][h] = __uint_as_float(mark.z);
    statistics.value[0][h] = __uint_as_float(mark.w);
  }
  marked = __any_sync(~0u, marked);
  if (!__syncthreads_or(marked)) return;
  b.load(memory, 0);
  const bool squared = p.normalizer == Normalizer::entmax15;
  find_threshold(b, squared, statistics, marked);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    statistics.norm[0][h] = 1;
    statistics.lse[0][h] = statistics.largest[0][h] + (statistics.value[0][h] + statistics.low[0][h]);
  }
  compute_rows<NormalizerFamily::threshold>(b, memory, squared, statistics, marked);
}

}  // namespace lazy::kernels::cuda::portable
