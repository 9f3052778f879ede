// Shared code of the TTT kernels: access to the tokens in global memory, and the step sizes of a chunk. The row stride
// of a tile of tokens is 72 floats. With this stride, loads of left, right and transposed operands have no bank
// conflicts.
#pragma once
#include "ops/cuda/fast_weights.cuh"
#include "ops/ttt_problem.h"

namespace lazy::ops::cuda::learning {

constexpr int kT = 16, kRow = kDim + 8, kTile = kT * kRow, kSquare = kT + 4;

// The sequence and head that a block processes.
struct Block {
  const TttProblem& p;

  __device__ int64_t head() const { return blockIdx.y; }
  __device__ int64_t n() const { return blockIdx.x * p.heads + blockIdx.y; }
  // Index of the initial state in its tensor. With one_state, all sequences start from the same state of a head.
  __device__ int64_t state() const { return p.one_state ? head() : n(); }
  __device__ int64_t chunk(int64_t chunk) const { return n() * p.C + chunk; }
  template <typename T>
  __device__ T* token(const TttTokens& x, int64_t t) const {
    return static_cast<T*>(x.at) + blockIdx.x * x.sequence + blockIdx.y * x.head + t * x.token;
  }
};

// Two adjacent elements of a token in the data type in which the token is stored.
template <typename T>
struct Two {
  uint32_t x;
  __device__ float2 get() const { return tensor_core::unpack<T>(x); }
  __device__ static Two of(float a, float b) { return {tensor_core::pack<T>(a, b)}; }
};
template <>
struct alignas(8) Two<float> {
  float x, y;
  __device__ float2 get() const { return make_float2(x, y); }
  __device__ static Two of(float a, float b) { return {a, b}; }
};

// The rows of a chunk that a warp processes; each lane has two elements of a row.
template <int WARPS>
struct WarpRows {
  static constexpr int kRows = kT / WARPS;
  __device__ static int row(int m) { return kRows * warp() + m; }
  __device__ static float* at(float* tile, int m) { return tile + row(m) * kRow + 2 * lane(); }
  // Calls function(m) for every row.
  template <typename Function>
  __device__ static void each(const Function& function) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) function(m);
  }
};
template <typename T, int WARPS>
class OwnRows {
 public:
  __device__ void read(const Block& block, const TttTokens& x, int64_t chunk) {
    WarpRows<WARPS>::each([&](int m) { rows_[m] = *place(block, x, chunk, m); });
  }
  __device__ float2 operator[](int m) const { return rows_[m].get(); }
  __device__ static void write(const Block& block, const TttTokens& x, int64_t chunk, int m, float2 value) {
    *place(block, x, chunk, m) = Two<T>::of(value.x, value.y);
  }

 private:
  __device__ static Two<T>* place(const Block& block, const TttTokens& x, int64_t chunk, int m) {
    return reinterpret_cast<Two<T>*>(block.token<T>(x, chunk * kT + WarpRows<WARPS>::row(m)) + 2 * lane());
  }
  Two<T> rows_[WarpRows<WARPS>::kRows];
};

// A thread's pairs of adjacent elements in the rows of its warp. They are loaded from global memory to registers and
// later stored to a tile.
template <typename T, int WARPS>
class RowPiece {
 public:
  __device__ void read(const T* first_row, int64_t step) {
    const Vector* const from = reinterpret_cast<const Vector*>(first_row + row() * step + column());
#pragma unroll
    for (int n = 0; n < kVectors; ++n) vectors_[n] = from[n];
  }
  __device__ void read(const Block& block, const TttTokens& x, int64_t chunk) {
    read(block.token<T>(x, chunk * kT), x.token);
  }
  template <int STEP = kRow>
  __device__ void write(float* tile) const {
    float* const to = tile + row() * STEP + column();
#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
#pragma unroll
      for (int m = 0; m < kTwos; ++m) {
        const float2 x = vectors_[n].x[m].get();
        set_pair(to + 2 * (n * kTwos + m), x.x, x.y);
      }
    }
  }

 private:
  static constexpr int kEach = kT * kDim / (32 * WARPS), kBytes = kEach * static_cast<int>(sizeof(T));
  static constexpr int kVector = kBytes < 16 ? kBytes : 16, kVectors = kBytes / kVector;
  static constexpr int kTwos = kVector / static_cast<int>(sizeof(Two<T>));
  struct alignas(kVector) Vector {
    Two<T> x[kTwos];
  };
  __device__ static int row() { return kEach * thread() / kDim; }
  __device__ static int column() { return kEach * thread() % kDim; }
  Vector vectors_[kVectors];
};

// The factors by which the inner-loss gradients of the tokens of a chunk are multiplied. The arrays are in shared
// memory.
struct Factors {
  // Arrays of kT elements. scale: factor per position in the chunk. rates: learning rate per token. steps: factor of
  // each token's inner-loss gradient in the state after the chunk.
  float *scale, *rates, *steps;
  static constexpr int kFloats = 3 * kT;

  __device__ explicit Factors(float* memory) : scale(memory), rates(memory + kT), steps(memory + 2 * kT) {}
  __device__ void set(float rate) const {
    if (threadIdx.x < kT) rates[threadIdx.x] = rate, steps[threadIdx.x] = scale[kT - 1] * rate;
  }
  // Factor of the inner-loss gradient of token j in the output of token i.
  __device__ float operator()(int i, int j) const { return j > i ? 0 : scale[i] * rates[j]; }
};

// Loads the inputs of the next chunk while the current chunk is processed; used by the forward pass.
template <typename T, int WARPS>
struct Ahead {
  __device__ void read(const Block& block, int64_t chunk) {
    const TttProblem& p = block.p;
    k.read(block, p.k, chunk);
    q.read(block, p.q, chunk);
    v.read(block, p.v, chunk);
    if (threadIdx.x < kT) rate = *block.token<const float>(p.rate, chunk * kT + threadIdx.x);
  }
  RowPiece<T, WARPS> k, q;
  OwnRows<T, WARPS> v;
  float rate = 0;
};

// Computes a row of the outputs of a TTT layer. f is the output of the fast-weights model for the queries q.
__device__ inline float2 output(const InnerLoss& norm, float2 q, float2 f) {
  const float2 n = NormRow(f).n;
  return make_float2(q.x + n.x * norm.weight.x + norm.bias.x, q.y + n.y * norm.weight.y + norm.bias.y);
}
// Returns the gradient with respect to f, given the gradient d of the output. Also adds to the gradients of the norm's
// weight and bias.
__device__ inline float2 through_output(const InnerLoss& norm, float2 f, float2 d, float2& by_weight, float2& by_bias) {
  const NormRow row(f);
  by_weight = make_float2(by_weight.x + d.x * row.n.x, by_weight.y + d.y * row.n.y);
  by_bias = make_float2(by_bias.x + d.x, by_bias.y + d.y);
  return row.through(make_float2(d.x * norm.weight.x, d.y * norm.weight.y));
}

// Writes the gradients of the learning rates of a chunk, and adds to the gradients of `scale`. Only the first 2 kT
// threads take part. by_steps: gradients with respect to the factors operator()(i, j). sums, (GROUPS, kT): partial sums
// of the gradients with respect to Factors::steps.
template <int GROUPS>
__device__ void by_factors(const Block& block, int64_t chunk, const Factors& factors, const float* by_steps,
                           const float* sums, float* d_scale) {
  if (threadIdx.x >= 2 * kT) return;
  const auto by_step = [&](int t) {
    float sum = 0;
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) sum += sums[group * kT + t];
    return sum;
  };
  const int t = threadIdx.x % kT;
  float sum = 0;
  if (threadIdx.x < kT) {
    for (int i = t; i < kT; ++i) sum += by_steps[i * kSquare + t] * factors.scale[i];
    *block.token<float>(block.p.d_rate, chunk * kT + t) = sum + factors.scale[kT - 1] * by_step(t);
    return;
  }
  for (int j = 0; j <= t; ++j) sum += by_steps[t * kSquare + j] * factors.rates[j];
  for (int j = 0; t == kT - 1 && j < kT; ++j) sum += by_step(j) * factors.rates[j];
  d_scale[t] += sum;
}

// Returns `factor`, a matrix operand that consists of tokens. bf16 values are exact in TF32, so the operand is then
// marked as already rounded.
template <typename T, typename Factor>
__device__ auto exact(const Factor& factor) {
  if constexpr (sizeof(T) == 2) {
    return rounded(factor);
  } else {
    return factor;
  }
}

void ttt_mlp_forward(const TttProblem& p, cudaStream_t stream);
void ttt_mlp_backward(const TttProblem& p, cudaStream_t stream);
// Shared memory in bytes of the backward pass, which needs more than the forward pass. Returns 0 if the width H is not
// supported.
int ttt_mlp_memory(int64_t H);

// Calls function(token) with a value of the tokens' data type.
template <typename Function>
void with_tokens(const TttProblem& p, const Function& function) {
  p.bf16 ? function(__nv_bfloat16{}) : function(float{});
}

}  // namespace lazy::ops::cuda::learning
