#include "ops/load_cuda.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <torch/library.h>

#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include "ops/cuda_library.h"

namespace lazy::ops {

std::filesystem::path library_beside(const char* name) {
  Dl_info here;
  dladdr(reinterpret_cast<void*>(&load_cuda), &here);
  return std::filesystem::path(here.dli_fname).parent_path() / name;
}

namespace {

std::filesystem::path library_path() { return library_beside("liblazy_ops_cuda.so"); }

// Loads a library and returns an error message, or "" on success. As for the libraries of PyTorch, RTLD_GLOBAL is
// required, so that libraries loaded later find its symbols.
std::string open(const std::string& library) {
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL)) return {};
  return dlerror();
}

std::string open_operators() {
  const auto path = library_path();
  if (!std::filesystem::exists(path)) return "this build has no CUDA kernels (" + path.string() + " does not exist)";
  return open(path.string());
}

// The reason why the CUDA operators are not loaded. Calls with CUDA tensors raise an error with this text.
std::string& reason() {
  static std::string text = "the CUDA operators are not loaded";
  return text;
}
void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK(false, op.schema().name(), ": expected tensors on the CPU, received CUDA tensors: ", reason());
}
std::unique_ptr<torch::Library>& refusals() {
  static std::unique_ptr<torch::Library> library;
  return library;
}
void register_refusals() {
  refusals() =
      std::make_unique<torch::Library>(torch::Library::IMPL, "lazy", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  for (const char* name :
       {"attention", "attention_forward", "attention_backward", "decode", "rms_norm", "add_rms_norm",
        "rms_norm_backward", "swiglu", "swiglu_backward", "swiglu_halves_backward", "short_convolution",
        "short_convolution_backward", "linear_recurrence", "linear_recurrence_backward", "rope", "quantize_fp8",
        "linear_cross_entropy", "linear_cross_entropy_and_gradients"}) {
    refusals()->impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse>());
  }
}

// Runs when liblazy_ops.so is loaded: registers the CUDA operators if the process has loaded PyTorch's CUDA libraries.
const bool at_start = [] {
  // RTLD_GLOBAL makes the symbols of this library visible to liblazy_ops_cuda.so.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL)) {
    reason() = open_operators();
    if (reason().empty()) return true;
  }
  register_refusals();
  return false;
}();

}  // namespace

void load_cuda() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (cuda_library().attention_kernel) return;
  std::string failed;
  if (!std::filesystem::exists(library_path())) {
    failed = open_operators();
  } else if (!dlopen("libcuda.so.1", RTLD_NOW)) {  // tested first, because loading PyTorch's libraries takes one second
    failed = "the NVIDIA driver (libcuda.so.1) was not found";
  } else {
    failed = open("libtorch_cuda.so");
    if (failed.empty() && !at::globalContext().hasCUDA()) failed = "PyTorch finds no GPU";
    if (failed.empty()) {
      refusals().reset();
      failed = open_operators();
    }
  }
  if (failed.empty()) return;
  reason() = failed;
  if (!refusals()) register_refusals();
  throw std::runtime_error("CUDA cannot be used: " + failed);
}

}  // namespace lazy::ops
