// Converts the tokens of Titans to inputs of the fast-weights kernels, and the outputs of these kernels back. Each
// direction needs only one pass over memory. A block processes one chunk of a sequence and head, and a warp processes
// one token at a time.
#include "ops/cuda/fast_weights.cuh"
#include "ops/cuda/vector.cuh"

namespace lazy::ops::cuda {

namespace {

using learning::lane, learning::NormRow, learning::pair, learning::row_dot, learning::set_pair, learning::warp;

constexpr int kDim = learning::kDim, kWarps = 8, kThreads = 32 * kWarps;

template <typename T>
struct alignas(2 * sizeof(T)) Two {
  T x, y;
};
template <typename T>
__device__ float2 read(const void* from, int64_t place) {
  const auto two = *reinterpret_cast<const Two<T>*>(static_cast<const T*>(from) + place);
  return make_float2(to_float(two.x), to_float(two.y));
}
template <typename T>
__device__ void write(void* to, int64_t place, float2 x) {
  *reinterpret_cast<Two<T>*>(static_cast<T*>(to) + place) = {rounded<T>(x.x), rounded<T>(x.y)};
}

// Calls function(place, by_text, text, head, token) for each token that the warp processes, including padding tokens.
// place is the offset of the lane's two elements in a tensor (chunks, batch * heads, T, 64), and by_text is their
// offset in a tensor (batch, tokens, heads, 64). text, head and token are the indices of the sequence, of the head, and
// of the token in the sequence.
template <typename Function>
__device__ void each_token(const MemoryShape& s, const Function& function) {
  const int64_t n = blockIdx.x % (s.batch * s.heads), chunk = blockIdx.x / (s.batch * s.heads);
  const int64_t text = n / s.heads, head = n % s.heads;
  for (int64_t t = warp(); t < s.T; t += kWarps) {
    const int64_t token = chunk * s.T + t;
    function((blockIdx.x * s.T + t) * kDim + 2 * lane(),
             ((text * s.tokens + token) * s.heads + head) * kDim + 2 * lane(), text, head, token);
  }
}

// Scales a row x to unit length: x / sqrt(sum x^2 + 1e-6).
struct UnitVector {
  float2 u;
  float factor;
  __device__ explicit UnitVector(float2 x) : factor(1 / sqrtf(row_dot(x, x) + 1e-6f)) {
    u = make_float2(factor * x.x, factor * x.y);
  }
  __device__ float2 through(float2 d) const {
    const float along = row_dot(u, d);
    return make_float2(factor * (d.x - u.x * along), factor * (d.y - u.y * along));
  }
};

template <typename T>
__device__ float2 read_stream(const MemoryStream& x, int64_t text, int64_t head, int64_t token) {
  return read<T>(x.at, text * x.text + head * x.head + token * x.token + 2 * lane());
}

template <typename T>
__global__ void __launch_bounds__(kThreads) tokens(const __grid_constant__ MemoryTokens p) {
  each_token(p.shape, [&](int64_t place, int64_t, int64_t text, int64_t head, int64_t token) {
    if (token >= p.shape.tokens) {
      for (float* to : {p.unit_q, p.unit_k, p.target}) set_pair(to + place, 0, 0);
      return;
    }
    const float2 q = UnitVector(read_stream<T>(p.q, text, head, token)).u,
                 k = UnitVector(read_stream<T>(p.k, text, head, token)).u, v = read_stream<T>(p.v, text, head, token);
    set_pair(p.unit_q + place, q.x, q.y);
    set_pair(p.unit_k + place, k.x, k.y);
    set_pair(p.target + place, p.residual ? v.x - k.x : v.x, p.residual ? v.y - k.y : v.y);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) token_gradients(const __grid_constant__ MemoryTokens p) {
  each_token(p.shape, [&](int64_t place, int64_t by_text, int64_t text, int64_t head, int64_t token) {
    if (token >= p.shape.tokens) return;
    const float2 d_v = pair(p.target + place), d = pair(p.unit_k + place),
                 d_k = p.residual ? make_float2(d.x - d_v.x, d.y - d_v.y) : d;
    write<T>(p.d_q, by_text, UnitVector(read_stream<T>(p.q, text, head, token)).through(pair(p.unit_q + place)));
    write<T>(p.d_k, by_text, UnitVector(read_stream<T>(p.k, text, head, token)).through(d_k));
    write<T>(p.d_v, by_text, d_v);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) outputs(const __grid_constant__ MemoryOutputs p) {
  each_token(p.shape, [&](int64_t place, int64_t by_text, int64_t, int64_t head, int64_t token) {
    if (token >= p.shape.tokens) return;
    const float2 x = pair(p.x + place), n = NormRow(pair(p.z + place)).n, w = pair(p.norm + head * kDim + 2 * lane());
    write<T>(p.out, by_text, make_float2(x.x + n.x * w.x, x.y + n.y * w.y));
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads) output_gradients(const __grid_constant__ MemoryOutputs p) {
  __shared__ float2 by_warp[kWarps][32];
  float2 d_norm{};
  each_token(p.shape, [&](int64_t place, int64_t, int64_t text, int64_t head, int64_t token) {
    const NormRow norm(pair(p.z + place));
    const float2 d = token < p.shape.tokens ? read_stream<T>(p.d_out, text, head, token) : float2{},
                 w = pair(p.norm + head * kDim + 2 * lane()), d_z = norm.through(make_float2(d.x * w.x, d.y * w.y));
    set_pair(p.d_z + place, d_z.x, d_z.y);
    set_pair(p.d_x + place, d.x, d.y);
    d_norm.x += d.x * norm.n.x, d_norm.y += d.y * norm.n.y;
  });
  by_warp[warp()][lane()] = d_norm;
  __syncthreads();
  if (warp() != 0) return;
  float2 sum{};
#pragma unroll
  for (int n = 0; n < kWarps; ++n) sum.x += by_warp[n][lane()].x, sum.y += by_warp[n][lane()].y;
  set_pair(p.d_norm + static_cast<int64_t>(blockIdx.x) * kDim + 2 * lane(), sum.x, sum.y);
}

template <typename Problem>
void launch(void (*kernel)(const Problem), const Problem& p, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(p.shape.chunks * p.shape.batch * p.shape.heads));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, p), "memory_tokens");
}

}  // namespace

void memory_tokens(const MemoryTokens& p, cudaStream_t stream) {
  with_type(p.type, [&](auto number) { launch(tokens<decltype(number)>, p, stream); });
}
void memory_tokens_backward(const MemoryTokens& p, cudaStream_t stream) {
  with_type(p.type, [&](auto number) { launch(token_gradients<decltype(number)>, p, stream); });
}
void memory_outputs(const MemoryOutputs& p, cudaStream_t stream) {
  with_type(p.type, [&](auto number) { launch(outputs<decltype(number)>, p, stream); });
}
void memory_outputs_backward(const MemoryOutputs& p, cudaStream_t stream) {
  with_type(p.type, [&](auto number) { launch(output_gradients<decltype(number)>, p, stream); });
}

}  // namespace lazy::ops::cuda
