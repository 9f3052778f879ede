// Computes the outputs of the tokens of a chunk from the state before the chunk and from the tokens of the chunk. All
// chunks run in parallel.
#include "ops/cuda/recurrence.cuh"

namespace lazy::ops::cuda {

namespace {

constexpr int kThreads = 128, kWidth = 64;  // kWidth: number of value columns per step

template <int K>
struct OutputsLayout {
  using Keys = SharedTile<kChunk, K>;
  using State = SharedTile<K, kWidth>;
  using Values = SharedTile<kChunk, kWidth>;
  static_assert(Keys::kBytes == State::kBytes);
  static constexpr int kBytes = 3 * Keys::kBytes + 2 * Values::kBytes + static_cast<int>(sizeof(ReadGates));
};

// Each warp processes 16 tokens. With the delta rule, u is read from memory; otherwise u = beta v.
template <int K>
__global__ void __launch_bounds__(kThreads, blocks_with(OutputsLayout<K>::kBytes, kThreads))
    outputs(const Recurrence a) {
  using L = OutputsLayout<K>;
  char* const memory = recurrence::shared_memory();
  SharedMemory shared{memory};
  const auto q = shared.tile<typename L::Keys>(), k = shared.tile<typename L::Keys>();
  const auto second = shared.tile<typename L::State>();
  char* const values_at = shared.next;
  const auto state = [&](int part) {  // odd parts of the state overwrite the keys, which are not needed any more
    return typename L::State{part % 2 ? k.data : second.data};
  };
  const auto u = [&](int part) { return typename L::Values{values_at + part % 2 * L::Values::kBytes}; };
  ReadGates& g = *reinterpret_cast<ReadGates*>(values_at + 2 * L::Values::kBytes);
  const ChunkPlace at(a, a.first + blockIdx.z, blockIdx.x, blockIdx.y);
  const int lane = threadIdx.x & 31, row = threadIdx.x / 32 * 16, parts = static_cast<int>(a.V / kWidth);
  const bf16* values = a.delta ? a.u + at.row(a, a.V) : at.rows_of(a.v, at.h);
  const int64_t step = a.delta ? a.H * a.V : a.v.token;
  const auto load = [&](int part) {
    state(part).template load<kThreads>(a.states + at.index * K * a.V + part * kWidth, a.V, K);
    u(part).template load<kThreads>(values + part * kWidth, step, at.rows);
  };

  load_gates(&g, a.gates[at.index]);
  q.template load<kThreads>(at.rows_of(a.q, at.g), a.q.token, at.rows);
  k.template load<kThreads>(at.rows_of(a.k, at.g), a.k.token, at.rows);
  tensor_core::copies_commit();
  load(0);
  tensor_core::copies_commit();
  tensor_core::copies_wait<1>();
  __syncthreads();
  float scores[1][8][4] = {};
  product<By::outer, By::outer, K / 16>(scores, q, row, k, 0);
  each_pair(scores, row, 0, [&](int i, int j, float& x, float& y) {
    x *= a.scale * reach(g, i, j) * (a.delta ? 1 : g.beta[j]);
    y *= a.scale * reach(g, i, j + 1) * (a.delta ? 1 : g.beta[j + 1]);
  });
  uint32_t weights[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) tensor_core::portable::as_left<bf16>(weights[i], scores[0], i);
  __syncthreads();

  bf16* to = a.out + at.row(a, a.V);
  for (int part = 0; part < parts; ++part) {
    if (part + 1 < parts) load(part + 1);
    tensor_core::copies_commit();
    tensor_core::copies_wait<1>();
    __syncthreads();
    float sum[1][8][4] = {};
    product<By::outer, By::inner, K / 16>(sum, q, row, state(part), 0);
    each_pair(sum, row, 0, [&](int i, int, float& x, float& y) {
      x *= a.scale * g.read[i];
      y *= a.scale * g.read[i];
    });
    const uint32_t from = u(part).address();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        uint32_t y[4];
        tensor_core::load_matrices_transposed(
            y, from + tensor_core::portable::at<kWidth>(16 * i + (lane & 15), 2 * n + (lane >> 4)));
        tensor_core::mma<bf16>(sum[0][2 * n], weights[i], y[0], y[1]);
        tensor_core::mma<bf16>(sum[0][2 * n + 1], weights[i], y[2], y[3]);
      }
    }
    const float skip = a.skip ? a.skip[at.h] : 0;
    each_pair(sum, row, 0, [&](int i, int j, float x, float y) {
      if (a.skip) {
        const float2 value = u(part).get(i, j);
        x = fmaf(skip, value.x, x);
        y = fmaf(skip, value.y, y);
      }
      if (i < at.rows) *reinterpret_cast<uint32_t*>(to + i * a.H * a.V + part * kWidth + j) = pack<bf16>(x, y);
    });
    // Wait, because the copy of part + 2 in the next iteration overwrites the memory of this part.
    __syncthreads();
  }
}

}  // namespace

void recurrence_outputs(const Recurrence& a, cudaStream_t stream) {
  with_keys(a.K, [&](auto keys) {
    launch_sequences("linear_recurrence", outputs<keys()>, a.chunks(), kThreads, OutputsLayout<keys()>::kBytes, a,
                     stream);
  });
}

}  // namespace lazy::ops::cuda
