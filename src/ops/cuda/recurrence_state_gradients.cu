// Computes the gradients of the state from the last chunk to the first. A block holds some columns of the gradient of a
// head's state in registers. It writes the gradient of the state after each chunk and the gradient of beta v of every
// token.
#include "ops/cuda/launch.h"
#include "ops/cuda/recurrence.cuh"

namespace lazy::ops::cuda {

namespace {

// As in recurrence_states.cu, a block has 32 * COLUMNS columns of the state. Each group of four warps has 32 of these
// columns, and each warp of the group has a quarter of the rows.
template <int K, int COLUMNS, bool DELTA>
struct StateGradientsLayout {
  static constexpr int kThreads = 128 * COLUMNS, kWidth = 32 * COLUMNS, kRows = K / 4;
  using Keys = SharedTile<kChunk, K>;
  using Square = SharedTile<kChunk, kChunk>;
  using Values = SharedTile<kChunk, kWidth>;
  using State = SharedTile<K, kWidth>;
  struct Stage {
    Keys q, k;
    Values d_out;
    Square pairs, inverse;  // `inverse` is only used with the delta rule
  };
  using Gates = std::conditional_t<DELTA, ChunkGates, StateGates>;
  static constexpr int kStage = 2 * Keys::kBytes + Values::kBytes + (DELTA ? 2 : 1) * Square::kBytes;
  static constexpr int kBytes =
      2 * kStage + State::kBytes + (DELTA ? 2 * Values::kBytes : 0) + 2 * static_cast<int>(sizeof(Gates));
};

template <int K, int COLUMNS, bool DELTA>
__global__ void __launch_bounds__(StateGradientsLayout<K, COLUMNS, DELTA>::kThreads,
                                  blocks_with(StateGradientsLayout<K, COLUMNS, DELTA>::kBytes,
                                              StateGradientsLayout<K, COLUMNS, DELTA>::kThreads))
    state_gradients(const Recurrence a) {
  using L = StateGradientsLayout<K, COLUMNS, DELTA>;
  char* const memory = recurrence::shared_memory();
  const auto stage = [&](int64_t n) {
    SharedMemory shared{memory + n % 2 * L::kStage};
    return typename L::Stage{shared.tile<typename L::Keys>(),
                             shared.tile<typename L::Keys>(),
                             shared.tile<typename L::Values>(),
                             shared.tile<typename L::Square>(),
                             {shared.next}};
  };
  SharedMemory shared{memory + 2 * L::kStage};
  const auto state = shared.tile<typename L::State>();
  typename L::Values d_written{}, d_rest{};
  if (DELTA) {
    d_written = shared.tile<typename L::Values>();
    d_rest = shared.tile<typename L::Values>();
  }
  auto* gates = reinterpret_cast<typename L::Gates*>(shared.next);

  const int64_t b = a.first + blockIdx.z, h = blockIdx.y, chunks = a.chunks(), v0 = int64_t{blockIdx.x} * L::kWidth;
  const int warp = threadIdx.x / 32, token = warp % 4 * 16, column = warp / 4 * 32, row = warp % 4 * L::kRows;
  const auto load = [&](int64_t n) {
    const ChunkPlace at(a, b, n, h);
    const auto to = stage(n);
    to.q.template load<L::kThreads>(at.rows_of(a.q, at.g), a.q.token, at.rows);
    to.k.template load<L::kThreads>(at.rows_of(a.k, at.g), a.k.token, at.rows);
    to.d_out.template load<L::kThreads>(at.rows_of(a.d_out, h) + v0, a.d_out.token, at.rows);
    to.pairs.template load<L::kThreads>(a.pairs + at.index * kChunk * kChunk, kChunk, kChunk);
    if constexpr (DELTA) to.inverse.template load<L::kThreads>(a.inverse + at.index * kChunk * kChunk, kChunk, kChunk);
    load_gates(gates + n % 2, a.gates[at.index]);
    tensor_core::copies_commit();
  };
  load(chunks - 1);
  float sum[L::kRows / 16][4][4] = {};
  if (a.d_final_state) {
    const float* from = a.d_final_state + (b * a.H + h) * K * a.V + v0;
    each_pair(sum, row, column, [&](int i, int j, float& x, float& y) {
      const float2 both = *reinterpret_cast<const float2*>(from + i * a.V + j);
      x = both.x;
      y = both.y;
    });
  }
  for (int64_t n = chunks - 1; n >= 0; --n) {
    const ChunkPlace at(a, b, n, h);
    const auto here = stage(n);
    const typename L::Gates& g = gates[n % 2];
    tensor_core::copies_wait<0>();
    __syncthreads();
    if (n > 0) load(n - 1);
    each_pair(sum, row, column, [&](int i, int j, float x, float y) { state.set(i, j, x, y); });
    __syncthreads();
    state.template store<L::kThreads>(a.d_states + at.index * K * a.V + v0, a.V);
    // d is the gradient of the value that a token writes to the state. The value affects the state at the end of the
    // chunk (first product) and the outputs of this token and of later tokens (second product).
    float d[1][4][4] = {};
    product<By::outer, By::inner, K / 16>(d, here.k, token, state, column);
    each_pair(d, token, column, [&](int i, int, float& x, float& y) {
      x *= g.write[i];
      y *= g.write[i];
    });
    product<By::inner, By::inner, kChunk / 16>(d, here.pairs, token, here.d_out, column);
    if constexpr (DELTA) {
      each_pair(d, token, column, [&](int i, int j, float x, float y) { d_written.set(i, j, x, y); });
      __syncthreads();
      tensor_core::portable::clear(d);
      product<By::inner, By::inner, kChunk / 16>(d, here.inverse, token, d_written, column);
      each_pair(d, token, column, [&](int i, int j, float x, float y) {
        const float factor = -g.beta[i] * g.read[i];
        d_rest.set(i, j, factor * x, factor * y);
      });
    } else {
      __syncthreads();
    }
    bf16* to = a.d_u + at.row(a, a.V) + v0;
    each_pair(d, token, column, [&](int i, int j, float x, float y) {
      if (i < at.rows) *reinterpret_cast<uint32_t*>(to + i * a.H * a.V + j) = pack<bf16>(x, y);
      const float2 out = here.d_out.get(i, j);  // no other thread reads this element until the next barrier
      here.d_out.set(i, j, a.scale * g.read[i] * out.x, a.scale * g.read[i] * out.y);
    });
    __syncthreads();
    const float keep = g.read[kChunk - 1];
    each_pair(sum, row, column, [&](int, int, float& x, float& y) {
      x *= keep;
      y *= keep;
    });
    product<By::inner, By::inner, kChunk / 16>(sum, here.q, row, here.d_out, column);
    if constexpr (DELTA) product<By::inner, By::inner, kChunk / 16>(sum, here.k, row, d_rest, column);
  }
  if (!a.d_initial_state) return;
  float* to = a.d_initial_state + (b * a.H + h) * K * a.V + v0;
  each_pair(sum, row, column,
            [&](int i, int j, float x, float y) { *reinterpret_cast<float2*>(to + i * a.V + j) = make_float2(x, y); });
}

template <int K, int COLUMNS, bool DELTA>
void launch(const Recurrence& a, cudaStream_t stream) {
  using L = StateGradientsLayout<K, COLUMNS, DELTA>;
  launch_sequences("linear_recurrence_backward", state_gradients<K, COLUMNS, DELTA>, a.V / L::kWidth, L::kThreads,
                   L::kBytes, a, stream);
}

}  // namespace

void recurrence_state_gradients(const Recurrence& a, cudaStream_t stream) {
  with_keys(a.K,
            [&](auto keys) { a.delta ? launch<keys(), 2, true>(a, stream) : launch<keys(), 2, false>(a, stream); });
}

bool recurrence_fits(int64_t K, bool delta) {
  int needed = 0;
  with_keys(K, [&](auto keys) {
    needed = delta ? StateGradientsLayout<keys(), 2, true>::kBytes : StateGradientsLayout<keys(), 2, false>::kBytes;
  });
  return std::max(needed, gradients_memory(K, delta)) <=
         most_shared_memory("linear_recurrence");  // the other linear-recurrence kernels need less shared memory
}

}  // namespace lazy::ops::cuda
