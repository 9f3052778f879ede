// LayerNorm of the outputs of a TTT layer, with bf16 rows, fp32 weights and fp32 sums. Each warp processes one row. Of
// every 256 elements, each lane has 8 adjacent ones.
#include "ops/cuda/fast_weights_ttt.cuh"

namespace lazy::ops::cuda::learning {

namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps, kPiece = 8, kWidth = 32 * kPiece;

// The elements of a row that a lane has: VECTORS vectors of 8 elements.
template <int VECTORS>
struct TttNormRow {
  static constexpr int kCount = VECTORS * kPiece;
  float x[kCount];

  __device__ static int column(int vector) { return vector * kWidth + lane() * kPiece; }
  __device__ void read(const __nv_bfloat16* row) {
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      const uint4 bits = *reinterpret_cast<const uint4*>(row + column(v));
      const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 two = tensor_core::unpack<__nv_bfloat16>(words[i]);
        x[v * kPiece + 2 * i] = two.x, x[v * kPiece + 2 * i + 1] = two.y;
      }
    }
  }
  __device__ void read(const float* row) {
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
#pragma unroll
      for (int i = 0; i < kPiece; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(row + column(v) + i);
        float* const to = x + v * kPiece + i;
        to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
      }
    }
  }
  __device__ void write(__nv_bfloat16* row) const {
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = tensor_core::pack<__nv_bfloat16>(x[v * kPiece + 2 * i], x[v * kPiece + 2 * i + 1]);
      }
      *reinterpret_cast<uint4*>(row + column(v)) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
  // Calls function(element, n) for each element.
  template <typename Function>
  __device__ void each(const Function& function) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) function(x[n], n);
  }
  __device__ void share(float* row) {
    each([&](float& a, int n) { row[column(n / kPiece) + n % kPiece] = a; });
  }
  template <typename Function>
  __device__ float mean(const Function& of) {
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kCount; ++n) sum += of(n);
    return warp_sum(sum) / (VECTORS * kWidth);
  }
  // Normalizes the row and returns the reciprocal standard deviation.
  __device__ float normalize(float eps) {
    const float middle = mean([&](int n) { return x[n]; });
    each([&](float& a, int) { a -= middle; });
    const float factor = 1 / sqrtf(mean([&](int n) { return x[n] * x[n]; }) + eps);
    each([&](float& a, int) { a *= factor; });
    return factor;
  }
};

}  // namespace

template <int VECTORS>
__global__ void __launch_bounds__(kThreads) norm_forward(const __grid_constant__ TttNorm p) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + warp();
  if (row >= p.rows) return;
  TttNormRow<VECTORS> x, weight, bias;
  x.read(static_cast<const __nv_bfloat16*>(p.x) + row * p.dim);
  weight.read(p.weight);
  bias.read(p.bias);
  x.normalize(p.eps);
  x.each([&](float& a, int n) { a = a * weight.x[n] + bias.x[n]; });
  x.write(static_cast<__nv_bfloat16*>(p.y) + row * p.dim);
}

// Each block sums the parameter gradients of its rows. The rows of a warp are added in order, so that the result is
// reproducible.
template <int VECTORS>
__global__ void __launch_bounds__(kThreads) norm_backward(const __grid_constant__ TttNorm p) {
  extern __shared__ __align__(128) float memory[];
  TttNormRow<VECTORS> by_weight{}, by_bias{}, weight;
  weight.read(p.weight);
  for (int64_t row = int64_t{blockIdx.x} * kWarps + warp(); row < p.rows; row += int64_t{gridDim.x} * kWarps) {
    TttNormRow<VECTORS> n, d;
    n.read(static_cast<const __nv_bfloat16*>(p.x) + row * p.dim);
    d.read(static_cast<const __nv_bfloat16*>(p.d_y) + row * p.dim);
    const float factor = n.normalize(p.eps);
    d.each([&](float& a, int i) { by_weight.x[i] += a * n.x[i], by_bias.x[i] += a, a *= weight.x[i]; });
    const float middle = d.mean([&](int i) { return d.x[i]; }), along = d.mean([&](int i) { return d.x[i] * n.x[i]; });
    d.each([&](float& a, int i) { a = factor * (a - middle - n.x[i] * along); });
    d.write(static_cast<__nv_bfloat16*>(p.d_x) + row * p.dim);
  }
  constexpr int kDims = VECTORS * kWidth;
  by_weight.share(memory + warp() * kDims);
  by_bias.share(memory + (kWarps + warp()) * kDims);
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * kDims; i += kThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += memory[(i / kDims * kWarps + w) * kDims + i % kDims];
    p.parts[int64_t{blockIdx.x} * 2 * kDims + i] = sum;
  }
}

}  // namespace lazy::ops::cuda::learning

namespace lazy::ops::cuda {

namespace {

template <typename Function>
void with_vectors(int64_t dim, const Function& function) {
  using namespace learning;
  if (dim == kWidth) return function(std::integral_constant<int, 1>{});
  if (dim == 2 * kWidth) return function(std::integral_constant<int, 2>{});
  function(std::integral_constant<int, 4>{});
}

template <typename Kernel>
void launch_norm(Kernel kernel, int64_t blocks, int shared, const TttNorm& p, cudaStream_t stream) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "ttt_norm");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(learning::kThreads));
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, p), "ttt_norm");
}

}  // namespace

bool serves_ttt_norm(int64_t dim) {
  return dim == learning::kWidth || dim == 2 * learning::kWidth || dim == 4 * learning::kWidth;
}

void ttt_norm_forward(const TttNorm& p, cudaStream_t stream) {
  with_vectors(p.dim, [&](auto vectors) {
    launch_norm(learning::norm_forward<vectors()>, (p.rows + learning::kWarps - 1) / learning::kWarps, 0, p, stream);
  });
}

void ttt_norm_backward(const TttNorm& p, cudaStream_t stream) {
  with_vectors(p.dim, [&](auto vectors) {
    launch_norm(learning::norm_backward<vectors()>, p.part_count,
                2 * learning::kWarps * static_cast<int>(p.dim * sizeof(float)), p, stream);
  });
}

}  // namespace lazy::ops::cuda
