// First kernel of the portable backward for sparsemax and entmax-1.5. It uses lists of keys, like the forward. The
// forward has stored each row's threshold in lse, so that one sweep over the keys can list the keys with nonzero
// weight. The center of each row and d_q are then computed from the lists alone. If a row has more such keys than its
// list can hold, the warp marks all of its rows, and backward_rows processes them.
#pragma once
#include "attention/cuda/portable_backward_sums.cuh"
#include "attention/cuda/portable_forward_threshold.cuh"

namespace lazy::kernels::cuda::portable {

// Whether the state belongs to a row that is marked because a list overflowed.
__device__ inline bool is_marked(const float4& state) { return __float_as_uint(state.x) == kMark; }

// Converts eight consecutive 16-bit elements to floats.
template <typename T>
__device__ void unpack_columns(float (&x)[8], const uint4& from) {
  const uint32_t pairs[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack<T>(pairs[i]);
    x[2 * i] = pair.x;
    x[2 * i + 1] = pair.y;
  }
}

// Computes the row states and d_q from the lists of a warp's rows. D / 8 lanes process a row, with 8 columns per lane.
template <typename T, int D, typename S>
__device__ void finish_listed(const RowSweep<T, D, S>& b, const ListedRow (&rows)[2], const Candidate* lists,
                              bool squared) {
  constexpr int lanes = D / 8, groups = 32 / lanes, ahead = 4;
  constexpr auto family = NormalizerFamily::threshold;
  const Params& p = b.p;
  const int column = b.lane % lanes * 8;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    for (int first = 0; first < 8; first += groups) {
      const int of_eight = first + b.lane / lanes, in_tile = b.warp_row + 8 * h + of_eight;
      const int row = b.t.first + in_tile, count = __shfl_sync(~0u, rows[h].count, 4 * of_eight);
      const bool there = row < b.t.q_length;
      const Candidate* const list = lists + in_tile * S::capacity;
      float d_out[8];
      unpack_columns<T>(d_out, there ? *reinterpret_cast<const uint4*>(static_cast<const T*>(p.d_out.data) +
                                                                       q_offset(p.d_out, b.t, b.t.head, row) + column)
                                     : uint4{});
      // Computes g (the gradient of the weight) of the list entries [base, base + ahead). Entries beyond the end of the
      // list get zero.
      auto gradients = [&](int base, float(&g)[ahead]) {
        uint4 values[ahead];
#pragma unroll
        for (int n = 0; n < ahead; ++n) {
          values[n] = {};
          if (base + n < count) {
            values[n] = *reinterpret_cast<const uint4*>(b.v + list[base + n].key * p.v.token + column);
          }
        }
#pragma unroll
        for (int n = 0; n < ahead; ++n) {
          float v[8];
          unpack_columns<T>(v, values[n]);
          g[n] = 0;
#pragma unroll
          for (int i = 0; i < 8; ++i) g[n] = fmaf(d_out[i], v[i], g[n]);
#pragma unroll
          for (int d = 1; d < lanes; d *= 2) g[n] += __shfl_xor_sync(~0u, g[n], d);
        }
      };
      float f_sum = 0, fg_sum = 0;
      for (int base = 0; __any_sync(~0u, base < count); base += ahead) {
        float g[ahead];
        gradients(base, g);
#pragma unroll
        for (int n = 0; n < ahead; ++n) {
          if (base + n >= count) continue;
          const float f = squared ? list[base + n].score : 1;
          f_sum += f;
          fg_sum = fmaf(f, g[n], fg_sum);
        }
      }
      const float inverse = f_sum == 0 ? 0 : 1 / f_sum, center = fg_sum * inverse;
      // If only one key of a row has a nonzero weight, the weight is 1 whatever the score is, so ds must be exactly 0.
      // row_norm returns a norm that forces this. Otherwise ds would be a rounding error, because backward_keys
      // computes g with a different order of additions.
      const float norm = row_norm<family>(p, count == 1, true, inverse);
      if (there && column == 0) {
        const float anchor = row_anchor<family>(p, row_index(p, b.t, b.t.head, row));
        row_state(p, b.t, b.t.head, row) = make_float4(anchor > -INFINITY ? anchor : 0, norm, center, 0);
      }
      if (!p.d_q.data) continue;
      float d_q[8] = {};
      for (int base = 0; __any_sync(~0u, base < count); base += ahead) {
        float g[ahead];
        gradients(base, g);
#pragma unroll
        for (int n = 0; n < ahead; ++n) {
          if (base + n >= count) continue;
          const Candidate c = list[base + n];
          const float ds = (squared ? c.score : 1) * norm * (g[n] - center);
          float k[8];
          unpack_columns<T>(k, *reinterpret_cast<const uint4*>(b.k + c.key * p.k.token + column));
#pragma unroll
          for (int i = 0; i < 8; ++i) d_q[i] = fmaf(ds, k[i], d_q[i]);
        }
      }
      if (there) {
        uint32_t packed[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) packed[i] = pack<T>(p.scale * d_q[2 * i], p.scale * d_q[2 * i + 1]);
        *reinterpret_cast<uint4*>(static_cast<T*>(p.d_q.data) + q_offset(p.d_q, b.t, b.t.head, row) + column) = {
            packed[0], packed[1], packed[2], packed[3]};
      }
    }
  }
}

template <typename T, int D>
__global__ void __launch_bounds__(ListShape<D>::threads, 2) backward_lists(const Params p, int tiles) {
  using S = ListShape<D>;
  constexpr int N = S::N, NT = N / 16;
  constexpr auto family = NormalizerFamily::threshold;
  extern __shared__ __align__(128) char memory[];
  RowSweep<T, D, S> b{p, score_unit<family>(p)};
  if (!b.start(memory, S::M * (S::row_bytes - D * 2), tiles)) return;
  // This kernel has no values in shared memory, so the tables of biases directly follow the keys.
  b.add = reinterpret_cast<float*>(memory + S::M * S::row_bytes + S::tile_bytes);
  const int lane = b.lane;
  Candidate* const lists = reinterpret_cast<Candidate*>(memory);
  uint32_t q[D / 16][4];  // the queries are kept in registers, because the lists overwrite them in shared memory
  keep_queries(b, q);
  ListedRow rows[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    rows[h].list = lists + (b.row(0, h) - b.t.first) * S::capacity;
    rows[h].floor = INFINITY;  // for rows that do not exist or see no key: no score is above this floor
    if (b.row(0, h) < b.t.q_length) {
      const float anchor = row_anchor<family>(p, row_index(p, b.t, b.t.head, b.row(0, h)));
      if (anchor != -INFINITY) rows[h].floor = anchor;
    }
  }
  bool overflowed = false;  // whether a row of the warp has more keys with nonzero weight than its list can hold
  b.sweep(false, [&](int key, int stage) {
    if (overflowed || !__any_sync(~0u, max(b.keys[0][0].end, b.keys[0][1].end) > key)) return;
    float s[1][2 * NT][4];
    const float c = scores_of(b, q, s, key, stage);
    // Subtracts the floor, which is the threshold of the row, from a score, with the same rounding as in backward_keys.
    auto above = [&](int h, float x) { return fmaf(x, c, -rows[h].floor); };
    // spoilt: a score is NaN or +infinity, so that backward_rows must process the row.
    bool any = false, spoilt = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = -INFINITY;
#pragma unroll
      for (int n = 0; n < 2 * NT; ++n) most = max_nan(most, max_nan(s[0][n][2 * h], s[0][n][2 * h + 1]));
      most = above(h, most);
      any |= !(most <= 0);
      spoilt |= !(most < INFINITY);
    }
    if (!__any_sync(~0u, any)) return;
    NewCandidates fresh;
    auto chosen = [&](int h, float x) { return above(h, x) > 0; };
    overflowed = __any_sync(~0u, spoilt) || !fresh.place(lane, s[0], rows, S::capacity, chosen);
    if (!overflowed) fresh.append(lane, s[0], rows, key, chosen, above);
  });
  __syncwarp();
  if (!overflowed) return finish_listed(b, rows, lists, p.normalizer == Normalizer::entmax15);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (lane % 4 == 0 && b.row(0, h) < b.t.q_length) {
      *reinterpret_cast<uint4*>(&row_state(p, b.t, b.t.head, b.row(0, h))) = {kMark, kMark, kMark, kMark};
    }
  }
}

}  // namespace lazy::kernels::cuda::portable
