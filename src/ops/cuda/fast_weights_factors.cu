// Computes the factors of fast weights with momentum from the gates of the tokens of a chunk. Let e be the momentum
// gate and f the keep gate of a token. One column of factors describes the effect of one token's gradient step on the
// weights and on the momentum at each token of the chunk. It is computed by the recurrence m <- e m, a <- f a + m over
// the tokens: a is the factor of the step in the weights, and m is its factor in the momentum. Both are 1 at the token
// itself. Two more columns contain the factors of the weights and of the momentum at the start of the chunk. A block
// computes one chunk, and a thread computes one column.
#include "ops/cuda/fast_weights.h"
#include "ops/cuda/launch.h"

namespace lazy::ops::cuda {

namespace {

constexpr int kT = kMemoryTokens, kCarry = kT, kKeep = kT + 1, kColumns = kT + 2, kThreads = 96;
constexpr int kRow = kColumns + 1;  // odd, so that the lanes that read the same column access different banks

struct Gates {
  float e, f;
};

// One column of factors. The recurrence applies the gates of token `first` and of all later tokens.
struct Column {
  int first;   // token after the token whose gradient step the column describes; 0 for the initial state
  float a, m;  // factors in the weights (a) and in the momentum (m) before token `first`
  float scale;
  int64_t place;  // offset of the factor at the chunk's first token, in the tensor that read_factors() returns
  int step;       // distance in floats to the factor at the next token

  __device__ Column(int column, int64_t chunk, const float* steps)
      : first(column < kT ? column + 1 : 0),
        a(column == kCarry ? 0 : 1),
        m(column == kKeep ? 0 : 1),
        scale(column < kT ? steps[chunk * kT + column] : 1),
        place(column < kT ? chunk * kT * kT + column : chunk * kT),
        step(column < kT ? kT : 1) {}
  __device__ void advance(const Gates& gates) { m *= gates.e, a = gates.f * a + m; }
};

__device__ void read_gates(Gates* gates, const MemoryFactors& p) {
  if (threadIdx.x < kT) {
    const int64_t token = static_cast<int64_t>(blockIdx.x) * kT + threadIdx.x;
    gates[threadIdx.x] = {expf(p.log_momentum[token]), expf(p.log_keep[token])};
  }
  __syncthreads();
}
__device__ float* read_factors(const MemoryFactors& p, int column) {
  return column < kT ? p.read_steps : column == kCarry ? p.read_carry : p.read_keep;
}
// Addresses where the factors a and m of a column after the last token are stored. m is null for the column of the
// initial weights, which do not affect the momentum.
struct Ends {
  float *a, *m;
  __device__ Ends(const MemoryFactors& p, int column, int64_t chunk)
      : a(column < kT        ? p.steps + chunk * kT + column
          : column == kCarry ? p.carry + chunk
                             : p.keep + chunk),
        m(column < kT        ? p.momentum_steps + chunk * kT + column
          : column == kCarry ? p.momentum_keep + chunk
                             : nullptr) {}
};

__global__ void __launch_bounds__(kThreads) factors(const __grid_constant__ MemoryFactors p) {
  __shared__ Gates gates[kT];
  read_gates(gates, p);
  const int c = static_cast<int>(threadIdx.x);
  if (c >= kColumns) return;
  Column column(c, blockIdx.x, p.step);
  float* const to = read_factors(p, c) + column.place;
  for (int t = 0; t < kT; ++t) {
    if (t >= column.first) column.advance(gates[t]);
    to[t * column.step] = t + 1 >= column.first ? column.a * column.scale : 0;
  }
  const Ends ends(p, c, blockIdx.x);
  *ends.a = column.a * column.scale;
  if (ends.m) *ends.m = column.m * column.scale;
}

__global__ void __launch_bounds__(kThreads) factor_gradients(const __grid_constant__ MemoryFactors p) {
  __shared__ Gates gates[kT];
  // Values of the recurrence for each column: row t of A (factor a) and of M (factor m) first contains the values
  // before token t, and the last row contains the values after the last token. Later, row t + 1 contains the
  // contributions of each column to the gradients of the gates of token t.
  __shared__ float A[(kT + 1) * kRow], M[(kT + 1) * kRow];
  read_gates(gates, p);
  const int c = static_cast<int>(threadIdx.x);
  if (c < kColumns) {
    Column column(c, blockIdx.x, p.step);
    const auto a = [&](int t) -> float& { return A[t * kRow + c]; };
    const auto m = [&](int t) -> float& { return M[t * kRow + c]; };
    for (int t = 0; t < column.first; ++t) a(t) = m(t) = 0;
    a(column.first) = column.a, m(column.first) = column.m;
    for (int t = column.first; t < kT; ++t) {
      column.advance(gates[t]);
      a(t + 1) = column.a, m(t + 1) = column.m;
    }
    const float* const from = read_factors(p, c) + column.place;
    const Ends ends(p, c, blockIdx.x);
    float d_a = *ends.a, d_m = ends.m ? *ends.m : 0, d_scale = d_a * a(kT) + d_m * m(kT);
    d_a *= column.scale, d_m *= column.scale;
#pragma unroll 8
    for (int t = kT - 1; t >= 0; --t) {
      const float d = t + 1 >= column.first ? from[t * column.step] : 0;
      d_scale += d * a(t + 1);
      if (t < column.first) {
        a(t + 1) = m(t + 1) = 0;
        continue;
      }
      d_a += d * column.scale, d_m += d_a;
      a(t + 1) = d_a * a(t), m(t + 1) = d_m * m(t);
      d_a *= gates[t].f, d_m *= gates[t].e;
    }
    if (c < kT) p.d_step[static_cast<int64_t>(blockIdx.x) * kT + c] = d_scale;
  }
  __syncthreads();
  if (c >= kT) return;
  float by_keep = 0, by_momentum = 0;
#pragma unroll 2
  for (int column = 0; column < kColumns; ++column) {
    by_keep += A[(c + 1) * kRow + column], by_momentum += M[(c + 1) * kRow + column];
  }
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kT + c;
  p.d_log_keep[token] = by_keep * gates[c].f, p.d_log_momentum[token] = by_momentum * gates[c].e;
}

void launch(void (*kernel)(const MemoryFactors), const MemoryFactors& p, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(p.chunks));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, p), "memory_factors");
}

}  // namespace

void memory_factors(const MemoryFactors& p, cudaStream_t stream) { launch(factors, p, stream); }
void memory_factors_backward(const MemoryFactors& p, cudaStream_t stream) { launch(factor_gradients, p, stream); }

}  // namespace lazy::ops::cuda
