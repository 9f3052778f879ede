#include "ops/cuda/rope_table.h"

#include "ops/cuda/launch.h"

namespace lazy::ops::cuda {

namespace {

__global__ void __launch_bounds__(256) fill(const RopeTable table, float* cos, float* sin) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x, all = table.positions * table.pairs;
  for (int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; n < all; n += step) {
    double s, c;
    sincos(static_cast<double>(n / table.pairs) * table.frequency[n % table.pairs], &s, &c);
    cos[n] = static_cast<float>(table.attention_factor * c);
    sin[n] = static_cast<float>(table.attention_factor * s);
  }
}

// RAII guard that allows this thread to allocate memory and to synchronize while a stream is capturing a CUDA graph.
struct OutsideRecording {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  OutsideRecording() { check(cudaThreadExchangeStreamCaptureMode(&mode), "rope"); }
  ~OutsideRecording() { cudaThreadExchangeStreamCaptureMode(&mode); }
};

struct OwnedStream {
  cudaStream_t stream = nullptr;
  OwnedStream() { check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "rope"); }
  ~OwnedStream() { cudaStreamDestroy(stream); }
};

}  // namespace

RopeTable make_rope_table(const std::vector<double>& frequency, double attention_factor, int64_t positions) {
  const OutsideRecording outside;
  const OwnedStream own;
  RopeTable table{};
  table.attention_factor = attention_factor;
  table.positions = positions;
  table.pairs = static_cast<int64_t>(frequency.size());
  const size_t frequencies = frequency.size() * sizeof(double);
  const size_t half = static_cast<size_t>(positions * table.pairs) * sizeof(float);
  // Each of the arrays is aligned to 256 bytes.
  const auto rounded = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  char* memory = nullptr;
  const cudaError_t status = cudaMalloc(reinterpret_cast<void**>(&memory), rounded(frequencies) + 2 * rounded(half));
  if (status != cudaSuccess) cudaGetLastError();  // clears the error, so that the next call does not report it
  check(status, "rope");
  auto* cos = reinterpret_cast<float*>(memory + rounded(frequencies));
  auto* sin = reinterpret_cast<float*>(memory + rounded(frequencies) + rounded(half));
  table.frequency = reinterpret_cast<const double*>(memory);
  table.cos = cos;
  table.sin = sin;
  check(cudaMemcpyAsync(memory, frequency.data(), frequencies, cudaMemcpyHostToDevice, own.stream), "rope");
  fill<<<1024, 256, 0, own.stream>>>(table, cos, sin);
  check_launch("rope");
  check(cudaStreamSynchronize(own.stream), "rope");
  return table;
}

}  // namespace lazy::ops::cuda
