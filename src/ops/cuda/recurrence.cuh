// Shared code of the linear-recurrence kernels: tiles in shared memory, products of tiles, and decays between tokens.
#pragma once
#include <algorithm>
#include <type_traits>

#include "attention/cuda/launch.h"
#include "attention/cuda/portable.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/recurrence.h"
#include "ops/cuda/vector.cuh"

namespace lazy::ops::cuda {

namespace tensor_core = lazy::kernels::cuda;
using tensor_core::portable::at;
using bf16 = __nv_bfloat16;

// A tile of R rows of W elements in shared memory, swizzled to avoid bank conflicts.
template <int R, int W>
struct SharedTile {
  static constexpr int kBytes = R * W * 2;
  char* data;

  __device__ uint32_t address() const { return tensor_core::shared_address(data); }
  __device__ uint32_t& pair(int row, int column) const {  // two adjacent elements; column is even
    return *reinterpret_cast<uint32_t*>(data + at<W>(row, column / 8) + column % 8 * 2);
  }
  __device__ void set(int row, int column, float x, float y) const { pair(row, column) = pack<bf16>(x, y); }
  __device__ float2 get(int row, int column) const { return unpack<bf16>(pair(row, column)); }
  __device__ uint4& eight(int row, int chunk) const { return *reinterpret_cast<uint4*>(data + at<W>(row, chunk)); }

  // Starts the asynchronous copy of the R rows of the tile from global memory, where consecutive rows are `step`
  // elements apart. Rows with an index of `limit` or above become zero.
  template <int THREADS>
  __device__ void load(const bf16* from, int64_t step, int limit) const {
    tensor_core::portable::load_tile<bf16, R, W, THREADS>(address(), from, step, limit);
  }
  template <int THREADS>
  __device__ void store(bf16* to, int64_t step) const {
#pragma unroll
    for (int n = threadIdx.x; n < R * W / 8; n += THREADS) {
      const int row = n / (W / 8), chunk = n % (W / 8);
      *reinterpret_cast<uint4*>(to + row * step + chunk * 8) = eight(row, chunk);
    }
  }
};

// Number of blocks that fit on a multiprocessor of sm_90. It has 228 KiB of shared memory, of which each block needs
// one KiB in addition to `bytes`, and 128 registers for each of 512 threads.
constexpr int blocks_with(int bytes, int threads) {
  return std::max(std::min((228 << 10) / (bytes + (1 << 10)), 512 / threads), 1);
}

namespace recurrence {
// Returns the dynamic shared memory of the block.
__device__ inline char* shared_memory() {
  extern __shared__ __align__(128) char memory[];
  return memory;
}
}  // namespace recurrence

// Allocates tiles in shared memory.
struct SharedMemory {
  char* next;
  template <typename SharedTile>
  __device__ SharedTile tile() {
    const SharedTile t{next};
    next += SharedTile::kBytes;
    return t;
  }
};

// The layout of an operand in its tile. outer: the rows of the tile are the rows (left operand) or columns (right
// operand) of the result. inner: the rows of the tile are the inner index of the product.
enum class By { outer, inner };

// Computes c += left * right over 16 KT inner indices. c has 16 MI rows, starting at `row`, and 16 NT columns, starting
// at `column`.
template <By LEFT, By RIGHT, int KT, int MI, int N2, int RL, int WL, int RR, int WR>
__device__ void product(float (&c)[MI][N2][4], const SharedTile<RL, WL>& left, int row, const SharedTile<RR, WR>& right,
                        int column) {
  const int lane = threadIdx.x & 31;
  const uint32_t a = left.address(), b = right.address();
#pragma unroll 4
  for (int k = 0; k < KT; ++k) {
    uint32_t x[MI][4];
#pragma unroll
    for (int m = 0; m < MI; ++m) {
      if constexpr (LEFT == By::outer) {
        tensor_core::load_matrices(x[m], a + at<WL>(row + 16 * m + (lane & 15), 2 * k + (lane >> 4)));
      } else {
        tensor_core::load_matrices_transposed(
            x[m], a + at<WL>(16 * k + (lane & 7) + (lane >> 4) * 8, (row + 16 * m) / 8 + ((lane >> 3) & 1)));
      }
    }
#pragma unroll
    for (int n = 0; n < N2 / 2; ++n) {
      uint32_t y[4];
      if constexpr (RIGHT == By::outer) {
        tensor_core::load_matrices(
            y, b + at<WR>(column + 16 * n + (lane & 7) + (lane >> 4) * 8, 2 * k + ((lane >> 3) & 1)));
      } else {
        tensor_core::load_matrices_transposed(y, b + at<WR>(16 * k + (lane & 15), column / 8 + 2 * n + (lane >> 4)));
      }
#pragma unroll
      for (int m = 0; m < MI; ++m) {
        tensor_core::mma<bf16>(c[m][2 * n], x[m], y[0], y[1]);
        tensor_core::mma<bf16>(c[m][2 * n + 1], x[m], y[2], y[3]);
      }
    }
  }
}

// Calls function(row, column, x, y) for every pair of adjacent elements of a warp's accumulators `c`. The first element
// of the accumulators is element (row, column) of the result.
template <int MI, int N2, typename Function>
__device__ void each_pair(float (&c)[MI][N2][4], int row, int column, const Function& function) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int m = 0; m < MI; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < N2; ++n) {
        function(row + 16 * m + 8 * half + lane / 4, column + 8 * n + lane % 4 * 2, c[m][n][2 * half],
                 c[m][n][2 * half + 1]);
      }
    }
  }
}

// The part of ChunkGates that the state-gradient kernel reads without the delta rule.
struct StateGates {
  float read[kChunk], write[kChunk];  // as in ChunkGates
};

// Starts the asynchronous copy of the gates of a chunk to shared memory. `Gates` may be a struct that contains only the
// gates that the kernel reads.
template <typename Gates>
__device__ void load_gates(Gates* to, const ChunkGates& from) {
  const char* first = reinterpret_cast<const char*>(&from);
  if constexpr (std::is_same_v<Gates, StateGates>) first = reinterpret_cast<const char*>(from.read);
  constexpr int kPieces = sizeof(Gates) / 16;
  if (threadIdx.x < kPieces) {
    tensor_core::copy_async(tensor_core::shared_address(reinterpret_cast<char*>(to) + threadIdx.x * 16),
                            first + threadIdx.x * 16, true);
  }
}

// Returns the decay from token j to token i of the same chunk, or 0 if j is after i or in a different document.
__device__ inline float reach(const ReadGates& g, int i, int j) {
  return j <= i && g.document[i] == g.document[j] ? tensor_core::exp2_fast(g.sum[i] - g.sum[j]) : 0;
}

// Indices and addresses of a chunk.
struct ChunkPlace {
  int64_t b, n, h, g;  // indices of batch entry, chunk, head and group
  int64_t index;       // linear index of (b, n, h)
  int64_t first;       // first token of the chunk
  int rows;            // number of tokens in the chunk

  __device__ ChunkPlace(const Recurrence& a, int64_t b, int64_t n, int64_t h)
      : b(b),
        n(n),
        h(h),
        g(static_cast<uint32_t>(h) / (static_cast<uint32_t>(a.H) / static_cast<uint32_t>(a.G))),
        index((b * a.chunks() + n) * a.H + h),
        first(n * kChunk),
        rows(static_cast<int>(min(int64_t{kChunk}, a.L - first))) {}
  __device__ const bf16* rows_of(const RecurrenceRows& x, int64_t head) const {
    return x.data + b * x.batch + first * x.token + head * x.head;
  }
  // Offset of the first row of this chunk and head in a contiguous tensor (B, L, H, dim).
  __device__ int64_t row(const Recurrence& a, int64_t dim) const { return ((b * a.L + first) * a.H + h) * dim; }
};

// Returns the shared memory in bytes that recurrence_gradients needs.
int gradients_memory(int64_t K, bool delta);

// Runs a kernel for every sequence with a grid of (x, H, sequences * each) blocks. A batch that exceeds the grid limit
// is split into several launches.
inline void launch_sequences(const char* operation, void (*kernel)(Recurrence), int64_t x, int threads,
                             size_t shared_bytes, const Recurrence& all, cudaStream_t stream, int64_t each = 1) {
  in_parts(
      all.B,
      [&](int64_t first, int64_t count) {
        Recurrence a = all;
        a.first = first;
        const dim3 grid(static_cast<unsigned>(x), static_cast<unsigned>(a.H), static_cast<unsigned>(count * each));
        tensor_core::launch(operation, kernel, grid, threads, shared_bytes, stream, a);
      },
      each);
}

// Calls function(integral_constant<K>) for the key dimension.
template <typename Function>
void with_keys(int64_t K, const Function& function) {
  if (K == 64) return function(std::integral_constant<int, 64>{});
  if (K == 128) return function(std::integral_constant<int, 128>{});
  function(std::integral_constant<int, 256>{});
}

}  // namespace lazy::ops::cuda
