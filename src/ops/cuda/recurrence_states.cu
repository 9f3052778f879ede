// Computes the states from chunk to chunk. A block keeps some columns of a head's state in registers and iterates over
// the sequence. It writes the state before each chunk and, with the delta rule, the value that each token writes. If
// there are two buffers (stages), the tiles of the next chunk are loaded while the block computes. With one buffer,
// they are loaded while a different block on the same multiprocessor computes.
#include "ops/cuda/recurrence.cuh"

namespace lazy::ops::cuda {

namespace {

// A block has 32 * COLUMNS columns of the state. Each group of four warps has 32 of these columns, and each warp of the
// group has a quarter of the rows.
template <int K, int COLUMNS, bool DELTA>
struct StatesLayout {
  // With K = 256 and two buffers (stages), only one block would fit on a multiprocessor.
  static constexpr int kStages = K == 256 ? 1 : 2;
  static constexpr int kThreads = 128 * COLUMNS, kWidth = 32 * COLUMNS, kRows = K / 4;
  using Keys = SharedTile<kChunk, K>;
  using Square = SharedTile<kChunk, kChunk>;
  using Values = SharedTile<kChunk, kWidth>;
  using State = SharedTile<K, kWidth>;
  struct Stage {
    Keys k;
    Values v;
    Square inverse;  // only used with the delta rule
  };
  static constexpr int kStage = Keys::kBytes + Values::kBytes + (DELTA ? Square::kBytes : 0);
  static constexpr int kBytes =
      kStages * (kStage + static_cast<int>(sizeof(ChunkGates))) + State::kBytes + (DELTA ? 2 : 1) * Values::kBytes;
};

template <int K, int COLUMNS, bool DELTA>
__global__ void __launch_bounds__(StatesLayout<K, COLUMNS, DELTA>::kThreads,
                                  blocks_with(StatesLayout<K, COLUMNS, DELTA>::kBytes,
                                              StatesLayout<K, COLUMNS, DELTA>::kThreads)) states(const Recurrence a) {
  using L = StatesLayout<K, COLUMNS, DELTA>;
  char* const memory = recurrence::shared_memory();
  const auto stage = [&](int64_t n) {  // tiles of chunk n; consecutive chunks alternate between kStages buffers
    SharedMemory shared{memory + n % L::kStages * L::kStage};
    return typename L::Stage{shared.tile<typename L::Keys>(), shared.tile<typename L::Values>(), {shared.next}};
  };
  SharedMemory shared{memory + L::kStages * L::kStage};
  const auto state = shared.tile<typename L::State>();
  const auto written = shared.tile<typename L::Values>();
  const auto rest = DELTA ? shared.tile<typename L::Values>() : written;
  auto* gates = reinterpret_cast<ChunkGates*>(shared.next);

  const int64_t b = a.first + blockIdx.z, h = blockIdx.y, chunks = a.chunks(), v0 = int64_t{blockIdx.x} * L::kWidth;
  const int warp = threadIdx.x / 32, token = warp % 4 * 16, column = warp / 4 * 32, row = warp % 4 * L::kRows;
  const auto load = [&](int64_t n) {
    const ChunkPlace at(a, b, n, h);
    const auto to = stage(n);
    to.k.template load<L::kThreads>(at.rows_of(a.k, at.g), a.k.token, at.rows);
    to.v.template load<L::kThreads>(at.rows_of(a.v, h) + v0, a.v.token, at.rows);
    if constexpr (DELTA) to.inverse.template load<L::kThreads>(a.inverse + at.index * kChunk * kChunk, kChunk, kChunk);
    load_gates(gates + n % L::kStages, a.gates[at.index]);
    tensor_core::copies_commit();
  };
  load(0);
  float sum[L::kRows / 16][4][4] = {};
  if (a.initial_state) {
    const float* from = a.initial_state + (b * a.H + h) * K * a.V + v0;
    each_pair(sum, row, column, [&](int i, int j, float& x, float& y) {
      const float2 both = *reinterpret_cast<const float2*>(from + i * a.V + j);
      x = both.x;
      y = both.y;
    });
  }
  for (int64_t n = 0; n < chunks; ++n) {
    const ChunkPlace at(a, b, n, h);
    const auto here = stage(n);
    const ChunkGates& g = gates[n % L::kStages];
    tensor_core::copies_wait<0>();
    __syncthreads();  // wait until this chunk has been loaded and the previous chunk has been processed
    if (L::kStages == 2 && n + 1 < chunks) load(n + 1);
    each_pair(sum, row, column, [&](int i, int j, float x, float y) { state.set(i, j, x, y); });
    if constexpr (!DELTA) {
      float u[1][4][4] = {};
      each_pair(u, token, column, [&](int i, int j, float, float) {
        const float2 value = here.v.get(i, j);
        const float factor = g.beta[i] * g.write[i];
        written.set(i, j, factor * value.x, factor * value.y);
      });
    }
    __syncthreads();
    state.template store<L::kThreads>(a.states + at.index * K * a.V + v0, a.V);
    if constexpr (DELTA) {
      float u[1][4][4] = {};
      product<By::outer, By::inner, K / 16>(u, here.k, token, state, column);
      each_pair(u, token, column, [&](int i, int j, float x, float y) {
        const float2 value = here.v.get(i, j);
        rest.set(i, j, g.beta[i] * (value.x - g.read[i] * x), g.beta[i] * (value.y - g.read[i] * y));
      });
      __syncthreads();
      tensor_core::portable::clear(u);
      product<By::outer, By::inner, kChunk / 16>(u, here.inverse, token, rest, column);
      bf16* to = a.u + at.row(a, a.V) + v0;
      each_pair(u, token, column, [&](int i, int j, float x, float y) {
        if (i < at.rows) *reinterpret_cast<uint32_t*>(to + i * a.H * a.V + j) = pack<bf16>(x, y);
        written.set(i, j, g.write[i] * x, g.write[i] * y);
      });
      __syncthreads();
    }
    const float keep = g.read[kChunk - 1];
    each_pair(sum, row, column, [&](int, int, float& x, float& y) {
      x *= keep;
      y *= keep;
    });
    product<By::inner, By::inner, kChunk / 16>(sum, here.k, row, written, column);
    if (L::kStages == 1 && n + 1 < chunks) {
      __syncthreads();  // wait until all warps have read this chunk
      load(n + 1);
    }
  }
  if (!a.final_state) return;
  float* to = a.final_state + (b * a.H + h) * K * a.V + v0;
  each_pair(sum, row, column,
            [&](int i, int j, float x, float y) { *reinterpret_cast<float2*>(to + i * a.V + j) = make_float2(x, y); });
}

template <int K, int COLUMNS, bool DELTA>
void launch(const Recurrence& a, cudaStream_t stream) {
  using L = StatesLayout<K, COLUMNS, DELTA>;
  launch_sequences("linear_recurrence", states<K, COLUMNS, DELTA>, a.V / L::kWidth, L::kThreads, L::kBytes, a, stream);
}

}  // namespace

void recurrence_states(const Recurrence& a, cudaStream_t stream) {
  // For key dimension 256, 32 columns per block are faster with the delta rule and slower without it.
  with_keys(a.K, [&](auto keys) {
    a.delta ? launch<keys(), keys() == 256 ? 1 : 2, true>(a, stream) : launch<keys(), 2, false>(a, stream);
  });
}

}  // namespace lazy::ops::cuda
