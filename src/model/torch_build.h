// Facts about the LibTorch installation and a self-test of this build's attention, for `lazy info` and `lazy doctor`.
// This header does not include ATen.
#pragma once
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace lazy {

std::string torch_version();  // for example "2.11.0"

struct TorchFacts {
  int64_t cuda_devices = 0;               // 0 unless CUDA is loaded (ops/load_cuda.h)
  std::string cuda_runtime;               // version, for example "13.0"; empty unless CUDA is loaded
  std::string cpu_vectors;                // instruction set of ATen's kernels, for example "AVX512"
  std::vector<std::string> cpu_features;  // features that the CPU supports, sorted
  std::string blas;                       // "mkl", "lapack" or "none"
};
TorchFacts torch_facts();

// True if CUDA is loaded and usable.
bool cuda_loaded();
// True if the installed LibTorch has its CUDA libraries in the same directory as the CPU library.
bool torch_has_cuda_libraries();

// Self-test: returns the largest difference between this build's softmax attention and PyTorch's
// scaled_dot_product_attention in fp32, on the current GPU if `gpu` is true and otherwise on the CPU.
double attention_error(bool gpu);

// Returns the message of an exception. LibTorch's errors are returned without the C++ backtrace.
std::string exception_message(const std::exception& error);

}  // namespace lazy
