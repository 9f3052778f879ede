// Matrices within a chunk: the gates of the chunk's tokens (ChunkGates in recurrence.h), the inverse of the triangular
// system of the delta rule, and the products q k^T multiplied by the decay between the two tokens.
#include "ops/cuda/recurrence.cuh"

namespace lazy::ops::cuda {

namespace {

constexpr float kLog2e = 1.4426950408889634f;

// A warp computes the gates of one chunk and head; each lane processes two tokens.
__global__ void __launch_bounds__(32) gates(const Recurrence a) {
  const ChunkPlace at(a, a.first + blockIdx.z, blockIdx.x, blockIdx.y);
  ChunkGates& g = a.gates[at.index];
  const int lane = threadIdx.x;
  float decay[2], beta[2];
  int document[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool there = 2 * lane + i < at.rows;
    const int64_t t = min(at.first + 2 * lane + i, a.L - 1), place = (at.b * a.L + t) * a.H + at.h;
    const float log_decay = !a.log_decay ? 0 : a.log_decay[a.constant_decay ? at.h : place];
    decay[i] = !there ? 0 : log_decay < kMinLogDecay ? kMinLogDecay : log_decay;  // unlike fmaxf, this retains NaN
    beta[i] = there ? (a.beta ? a.beta[place] : 1) : 0;
    document[i] = a.documents ? a.documents[t] : 0;
  }
  float sum = decay[0] + decay[1];
  for (int step = 1; step < 32; step *= 2) {
    const float other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  const float own[2] = {sum - decay[1], sum};
  const float last = __shfl_sync(~0u, sum, 31);
  const int end = __shfl_sync(~0u, document[1], 31);
  const int before = a.documents ? a.documents[max(at.first - 1, int64_t{0})] : 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int t = 2 * lane + i;
    g.sum[t] = own[i] * kLog2e;
    g.beta[t] = beta[i];
    g.read[t] = document[i] == before ? expf(own[i]) : 0;
    g.write[t] = document[i] == end ? expf(last - own[i]) : 0;
    g.document[t] = document[i];
  }
}

// Thread j computes column j of the inverse of I + A by forward substitution, where A is strictly lower triangular.
__device__ void invert(const float (*A)[kChunk], bf16* to) {
  const int j = threadIdx.x;
  float t[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    float sum[4] = {i == j ? 1.0f : 0.0f};
#pragma unroll
    for (int m = 0; m < i; m += 4) {
      const float4 row = *reinterpret_cast<const float4*>(&A[i][m]);
      const float entry[4] = {row.x, row.y, row.z, row.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (m + e < i) sum[e] = fmaf(-entry[e], t[m + e], sum[e]);
      }
    }
    t[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    to[i * kChunk + j] = __float2bfloat16_rn(t[i]);
  }
}

constexpr int kThreads = 128;

template <int K>
struct MatricesShared {
  using Keys = SharedTile<kChunk, K>;
  static constexpr int kSystemBytes = kChunk * kChunk * 4;
  static int bytes(const Recurrence& a) {
    return Keys::kBytes + static_cast<int>(sizeof(ChunkGates)) + (a.pairs ? Keys::kBytes : 0) +
           (a.inverse ? kSystemBytes : 0);
  }
};

template <int K>
__global__ void __launch_bounds__(kThreads) matrices(const Recurrence a) {
  char* const memory = recurrence::shared_memory();
  SharedMemory shared{memory};
  const auto k = shared.tile<typename MatricesShared<K>::Keys>();
  ChunkGates& g = *reinterpret_cast<ChunkGates*>(shared.next);
  auto* const A = reinterpret_cast<float(*)[kChunk]>(&g + 1);
  const typename MatricesShared<K>::Keys q{reinterpret_cast<char*>(A) +
                                           (a.inverse ? MatricesShared<K>::kSystemBytes : 0)};
  const ChunkPlace at(a, a.first + blockIdx.z, blockIdx.x, blockIdx.y);
  const int row = threadIdx.x / 32 * 16;

  load_gates(&g, a.gates[at.index]);
  k.template load<kThreads>(at.rows_of(a.k, at.g), a.k.token, at.rows);
  if (a.pairs) q.template load<kThreads>(at.rows_of(a.q, at.g), a.q.token, at.rows);
  tensor_core::copies_commit();
  tensor_core::copies_wait<0>();
  __syncthreads();
  if (a.pairs) {
    float c[1][8][4] = {};
    product<By::outer, By::outer, K / 16>(c, q, row, k, 0);
    bf16* to = a.pairs + at.index * kChunk * kChunk;
    each_pair(c, row, 0, [&](int i, int j, float x, float y) {
      *reinterpret_cast<uint32_t*>(to + i * kChunk + j) =
          pack<bf16>(a.scale * reach(g, i, j) * x, a.scale * reach(g, i, j + 1) * y);
    });
  }
  if (!a.inverse) return;
  float c[1][8][4] = {};
  product<By::outer, By::outer, K / 16>(c, k, row, k, 0);
  each_pair(c, row, 0, [&](int i, int j, float x, float y) {
    A[i][j] = j < i ? g.beta[i] * reach(g, i, j) * x : 0;
    A[i][j + 1] = j + 1 < i ? g.beta[i] * reach(g, i, j + 1) * y : 0;
  });
  __syncthreads();
  if (threadIdx.x < kChunk) invert(A, a.inverse + at.index * kChunk * kChunk);
}

}  // namespace

void recurrence_gates(const Recurrence& a, cudaStream_t stream) {
  launch_sequences("linear_recurrence", gates, a.chunks(), 32, 0, a, stream);
}

void recurrence_matrices(const Recurrence& a, cudaStream_t stream) {
  with_keys(a.K, [&](auto keys) {
    launch_sequences("linear_recurrence", matrices<keys()>, a.chunks(), kThreads, MatricesShared<keys()>::bytes(a), a,
                     stream);
  });
}

}  // namespace lazy::ops::cuda
