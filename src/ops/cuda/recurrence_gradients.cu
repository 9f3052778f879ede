// Kernel for the gradients of queries, keys, values, beta and decays of each chunk. All chunks run in parallel. Large
// key dimensions are split into slices, each of which yields a partial gradient of beta and of the decays.
#include "ops/cuda/recurrence.cuh"

namespace lazy::ops::cuda {

namespace {

constexpr int kThreads = 256, kWidth = 64;  // kWidth: number of value columns per step

// Number of key columns that one block processes.
template <int K>
constexpr int kSlice = std::min(K, 128);

template <int K, bool DELTA>
struct GradientsLayout {
  using Keys = SharedTile<kChunk, kSlice<K>>;
  using Square = SharedTile<kChunk, kChunk>;
  using Values = SharedTile<kChunk, kWidth>;
  using State = SharedTile<kSlice<K>, kWidth>;
  struct Stage {
    Values d_out, u;
    State state, d_state;
    Values d_u;  // only with the delta rule
  };
  static constexpr int kStage = (DELTA ? 3 : 2) * Values::kBytes + 2 * State::kBytes;
  static constexpr int kSums = 9 * kChunk;  // size of the array `exchanged`, in which warps exchange partial sums
  static constexpr int bytes(int stages) {
    return stages * kStage + 2 * Keys::kBytes + kSums * 4 + static_cast<int>(sizeof(ChunkGates));
  }
  static_assert(3 * Square::kBytes <= kStage);
};

// Adds to `sum` the inner products of the rows of a warp's matrix c with the rows of the tile x. Each lane adds its
// part of the products of two rows.
template <int N2, int W>
__device__ void add_row_products(float (&sum)[2], const float (&c)[1][N2][4], const SharedTile<kChunk, W>& x, int row,
                                 int column) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int n = 0; n < N2; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 both = x.get(row + lane / 4 + 8 * r, column + 8 * n + lane % 4 * 2);
      sum[r] = fmaf(both.x, c[0][n][2 * r], fmaf(both.y, c[0][n][2 * r + 1], sum[r]));
    }
  }
}

// Number of buffers (stages) for the tiles of the values. With one buffer, there is enough shared memory for a second
// block on the multiprocessor.
__host__ __device__ int stages(const Recurrence& a) { return a.V > kWidth ? 2 : 1; }

// The block has eight warps. Each warp computes 16 tokens and half of the columns.
template <int K, bool DELTA>
__global__ void __launch_bounds__(kThreads, DELTA ? 1 : 2) gradients(const Recurrence a) {
  using L = GradientsLayout<K, DELTA>;
  constexpr int KS = kSlice<K>, kSlices = K / KS;
  char* const memory = recurrence::shared_memory();
  const auto stage = [&](int part) {
    SharedMemory shared{memory + part % 2 * L::kStage};
    return typename L::Stage{shared.tile<typename L::Values>(),
                             shared.tile<typename L::Values>(),
                             shared.tile<typename L::State>(),
                             shared.tile<typename L::State>(),
                             {shared.next}};
  };
  SharedMemory shared{memory + stages(a) * L::kStage};
  const auto q = shared.tile<typename L::Keys>(), k = shared.tile<typename L::Keys>();
  auto* exchanged = reinterpret_cast<float(*)[kChunk]>(shared.next);
  ChunkGates& g = *reinterpret_cast<ChunkGates*>(shared.next + L::kSums * 4);
  const int slice = static_cast<int>(blockIdx.z % kSlices), k0 = slice * KS, parts = static_cast<int>(a.V / kWidth);
  const ChunkPlace at(a, a.first + blockIdx.z / kSlices, blockIdx.x, blockIdx.y);
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, row = warp % 4 * 16, half = warp / 4;
  const bf16* values = DELTA ? a.u + at.row(a, a.V) : at.rows_of(a.v, at.h);
  const int64_t values_step = DELTA ? a.H * a.V : a.v.token;
  const auto load = [&](int part) {
    const auto to = stage(part);
    const int v0 = part * kWidth;
    const int64_t state = (at.index * K + k0) * a.V + v0;
    to.d_out.template load<kThreads>(at.rows_of(a.d_out, at.h) + v0, a.d_out.token, at.rows);
    to.u.template load<kThreads>(values + v0, values_step, at.rows);
    if constexpr (DELTA) to.d_u.template load<kThreads>(a.d_u + at.row(a, a.V) + v0, a.H * a.V, at.rows);
    to.state.template load<kThreads>(a.states + state, a.V, KS);
    to.d_state.template load<kThreads>(a.d_states + state, a.V, KS);
  };
  load_gates(&g, a.gates[at.index]);
  q.template load<kThreads>(at.rows_of(a.q, at.g) + k0, a.q.token, at.rows);
  k.template load<kThreads>(at.rows_of(a.k, at.g) + k0, a.k.token, at.rows);
  load(0);
  tensor_core::copies_commit();

  // Matrix products over the value dimension. d_pairs = d_out u^T and d_system = d_u u^T have one element per pair of
  // tokens. d_q = d_out state^T, d_written = u d_state^T and d_read = d_u state^T have one element per token and key
  // column.
  float d_pairs[1][4][4] = {}, d_system[1][4][4] = {};
  float d_q[1][KS / 16][4] = {}, d_written[1][KS / 16][4] = {}, d_read[1][KS / 16][4] = {};
  float kept = 0;  // the thread's part of the inner product of state and d_state
  for (int part = 0; part < parts; ++part) {
    if (part + 1 < parts) load(part + 1);
    tensor_core::copies_commit();
    tensor_core::copies_wait<1>();
    __syncthreads();
    const auto t = stage(part);
    product<By::outer, By::outer, kWidth / 16>(d_pairs, t.d_out, row, t.u, half * 32);
    product<By::outer, By::outer, kWidth / 16>(d_q, t.d_out, row, t.state, half * (KS / 2));
    product<By::outer, By::outer, kWidth / 16>(d_written, t.u, row, t.d_state, half * (KS / 2));
    if constexpr (DELTA) {
      product<By::outer, By::outer, kWidth / 16>(d_system, t.d_u, row, t.u, half * 32);
      product<By::outer, By::outer, kWidth / 16>(d_read, t.d_u, row, t.state, half * (KS / 2));
    }
    for (int n = threadIdx.x; n < KS * kWidth / 8; n += kThreads) {
      float x[8], y[8];
      expand<bf16, 8>(t.state.eight(n / 8, n % 8), x);
      expand<bf16, 8>(t.d_state.eight(n / 8, n % 8), y);
#pragma unroll
      for (int i = 0; i < 8; ++i) kept = fmaf(x[i], y[i], kept);
    }
    __syncthreads();
  }

  // Tile `scores` contains the gradient of q k^T. With the delta rule, tile `rated` contains the gradient of k k^T, and
  // tile `system` contains this gradient without the factor beta. All three include the decay between the two tokens.
  SharedMemory squares{memory};
  const auto scores = squares.tile<typename L::Square>(), system = squares.tile<typename L::Square>(),
             rated = squares.tile<typename L::Square>();
  each_pair(d_pairs, row, half * 32, [&](int i, int j, float x, float y) {
    const float one = a.scale * reach(g, i, j), two = a.scale * reach(g, i, j + 1);
    scores.set(i, j, one * x * (DELTA ? 1 : g.beta[j]), two * y * (DELTA ? 1 : g.beta[j + 1]));
  });
  if constexpr (DELTA) {
    each_pair(d_system, row, half * 32, [&](int i, int j, float x, float y) {
      const float one = j < i ? -reach(g, i, j) * x : 0, two = j + 1 < i ? -reach(g, i, j + 1) * y : 0;
      system.set(i, j, one, two);
      rated.set(i, j, g.beta[i] * one, g.beta[i] * two);
    });
  }
  __syncthreads();

  // Inner products per token, for the gradients of the decays and of beta:
  //   [0] q . d_q
  //   [1] k . d_k, where d_k includes only the write to the state at the end of the chunk
  //   [2] k . d_k, where d_k includes all writes with the key
  //   [3] k . d_k, where d_k includes only the read of the state with the key (delta rule)
  float of_row[4][2] = {};
  const int column = half * (KS / 2);
  each_pair(d_q, row, column, [&](int i, int, float& x, float& y) {
    x *= a.scale * g.read[i];
    y *= a.scale * g.read[i];
  });
  product<By::outer, By::inner, kChunk / 16>(d_q, scores, row, k, column);
  const int64_t to = at.row(a, K) + k0;
  add_row_products(of_row[0], d_q, q, row, column);
  each_pair(d_q, row, column, [&](int i, int j, float x, float y) {
    if (i < at.rows) *reinterpret_cast<uint32_t*>(a.d_q + to + i * a.H * K + j) = pack<bf16>(x, y);
  });
  each_pair(d_written, row, column, [&](int i, int, float& x, float& y) {
    const float factor = g.write[i] * (DELTA ? 1 : g.beta[i]);
    x *= factor;
    y *= factor;
  });
  add_row_products(of_row[1], d_written, k, row, column);
  product<By::inner, By::inner, kChunk / 16>(d_written, scores, row, q, column);
  if constexpr (DELTA) {
    product<By::inner, By::inner, kChunk / 16>(d_written, rated, row, k, column);
    each_pair(d_read, row, column, [&](int i, int, float& x, float& y) {
      x *= -g.read[i];
      y *= -g.read[i];
    });
    product<By::outer, By::inner, kChunk / 16>(d_read, system, row, k, column);
  }
  add_row_products(of_row[2], d_written, k, row, column);
  if constexpr (DELTA) {
    add_row_products(of_row[3], d_read, k, row, column);
#pragma unroll
    for (int n = 0; n < KS / 16; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) d_written[0][n][e] += g.beta[row + lane / 4 + e / 2 * 8] * d_read[0][n][e];
    }
  }
  each_pair(d_written, row, column, [&](int i, int j, float x, float y) {
    if (i < at.rows) *reinterpret_cast<uint32_t*>(a.d_k + to + i * a.H * K + j) = pack<bf16>(x, y);
  });

#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int which = 0; which < 4; ++which) {
      float x = of_row[which][r];
      x += __shfl_xor_sync(~0u, x, 1);
      x += __shfl_xor_sync(~0u, x, 2);
      if (lane % 4 == 0) exchanged[half * 4 + which][row + lane / 4 + 8 * r] = x;
    }
  }
  for (int step = 16; step > 0; step /= 2) kept += __shfl_xor_sync(~0u, kept, step);
  if (lane == 0) exchanged[8][warp] = kept;
  __syncthreads();
  const int i = threadIdx.x;
  float sums[4] = {}, d_sum = 0;
  if (i < kChunk) {
    for (int which = 0; which < 4; ++which) sums[which] = exchanged[which][i] + exchanged[4 + which][i];
    d_sum = sums[0] - sums[2] + g.beta[i] * sums[3];
  }
  __syncthreads();
  // `later` becomes the sum of d_sum over this token and the later tokens, and `written` becomes the sum of sums[1]
  // over all tokens. The loop below only adds the tokens of a warp; the sums of the two warps are added after the
  // barrier.
  float later = d_sum, written = sums[1];
  if (i < kChunk) {
    for (int step = 1; step < 32; step *= 2) {
      const float other = __shfl_down_sync(~0u, later, step);
      if (lane + step < 32) later += other;
      written += __shfl_xor_sync(~0u, written, step);
    }
    if (lane == 0) exchanged[warp][0] = later, exchanged[warp][1] = written;
  }
  __syncthreads();
  if (i < at.rows) {
    const int64_t place = ((slice * a.B + at.b) * a.L + at.first + i) * a.H + at.h;
    if (a.d_log_decay) {
      // The log decay of a token is a term of the prefix sums ReadGates::sum of this token and of all later tokens of
      // the chunk. The sum at the last token is the log decay of the state over the whole chunk.
      float end = 0;
      for (int w = 0; w < kThreads / 32; ++w) end += exchanged[8][w];
      end = end * g.read[kChunk - 1] + exchanged[0][1] + exchanged[1][1] + later + (warp == 0 ? exchanged[1][0] : 0);
      const float own = a.constant_decay ? 0 : a.log_decay[((at.b * a.L) + at.first + i) * a.H + at.h];
      a.d_log_decay[place] = own < kMinLogDecay ? 0 : end;
    }
    if (a.d_beta) a.d_beta[place] = DELTA ? sums[3] : 0;
  }
  if (!a.d_v || slice > 0) return;
  __syncthreads();
  // v contributes to the loss through beta v, whose gradient is d_u, and through skip v. Eight lanes process one token.
  constexpr int kLanes = 8;
  const float skip = a.skip ? a.skip[at.h] : 0;
#pragma unroll
  for (int t = threadIdx.x / kLanes; t < kChunk; t += kThreads / kLanes) {
    const bool there = t < at.rows;
    const bf16* d_u = a.d_u + at.row(a, a.V) + t * a.H * a.V;
    const bf16* v = at.rows_of(a.v, at.h) + t * a.v.token;
    bf16* d_v = a.d_v + at.row(a, a.V) + t * a.H * a.V;
    const bf16* d_out = at.rows_of(a.d_out, at.h) + t * a.d_out.token;
    float sum = 0, sum_out = 0;
    for (int n = lane % kLanes * 8; there && n < a.V; n += 8 * kLanes) {
      float d[8], x[8];
      expand<bf16, 8>(load_once<bf16, 8>(d_u + n), d);
      expand<bf16, 8>(load_once<bf16, 8>(v + n), x);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        sum = fmaf(d[e], x[e], sum);
        d[e] *= g.beta[t];
      }
      if (a.skip) {
        float o[8];
        expand<bf16, 8>(load_once<bf16, 8>(d_out + n), o);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
          sum_out = fmaf(o[e], x[e], sum_out);
          d[e] = fmaf(skip, o[e], d[e]);
        }
      }
      cuda::store<bf16, 8>(d_v + n, round_all<bf16, 8>(d));
    }
    for (int step = kLanes / 2; step > 0; step /= 2) {
      sum += __shfl_xor_sync(~0u, sum, step);
      sum_out += __shfl_xor_sync(~0u, sum_out, step);
    }
    if (!there || lane % kLanes != 0) continue;
    const int64_t place = (at.b * a.L + at.first + t) * a.H + at.h;
    if (a.d_beta) a.d_beta[place] += sum;
    if (a.d_skip) a.d_skip[place] = sum_out;
  }
}

template <int K, bool DELTA>
void launch(const Recurrence& a, cudaStream_t stream) {
  launch_sequences("linear_recurrence_backward", gradients<K, DELTA>, a.chunks(), kThreads,
                   GradientsLayout<K, DELTA>::bytes(stages(a)), a, stream, K / kSlice<K>);
}

}  // namespace

int gradients_memory(int64_t K, bool delta) {
  int bytes = 0;
  with_keys(K, [&](auto keys) {
    bytes = delta ? GradientsLayout<keys(), true>::bytes(2) : GradientsLayout<keys(), false>::bytes(2);
  });
  return bytes;
}

void recurrence_gradients(const Recurrence& a, cudaStream_t stream) {
  with_keys(a.K, [&](auto keys) { a.delta ? launch<keys(), true>(a, stream) : launch<keys(), false>(a, stream); });
}

}  // namespace lazy::ops::cuda
