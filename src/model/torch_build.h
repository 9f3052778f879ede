// Facts about LibTorch and a check of this build's attention, for `lazy info` and `lazy doctor`. Needs no ATen header.
#pragma once
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace lazy {

std::string torch_version();  // "2.11.0"

struct TorchFacts {
  int64_t cuda_devices = 0;               // 0 unless CUDA is loaded (ops/load_cuda.h)
  std::string cuda_runtime;               // "13.0"; empty unless CUDA is loaded
  std::string cpu_vectors;                // the instruction set that ATen's kernels use: "AVX512"
  std::vector<std::string> cpu_features;  // what the CPU supports, sorted
  std::string blas;                       // "mkl", "lapack" or "none"
};
TorchFacts torch_facts();

// Whether CUDA is loaded and usable.
bool cuda_loaded();
// Whether the installed LibTorch has its CUDA libraries next to the library of the CPU operators.
bool torch_has_cuda_libraries();

// The largest difference between this build's softmax attention and PyTorch's scaled_dot_product_attention, in fp32, on
// the CPU or the current GPU.
double attention_error(bool gpu);

// The message of an exception; for LibTorch's errors without the C++ backtrace.
std::string exception_message(const std::exception& error);

}  // namespace lazy
