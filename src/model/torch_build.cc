#include "model/torch_build.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/cpu/Utils.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "ops/attention.h"

namespace lazy {

std::string torch_version() { return TORCH_VERSION; }

TorchFacts torch_facts() {
  TorchFacts facts;
  if (at::hasCUDA()) {
    facts.cuda_devices = at::detail::getCUDAHooks().deviceCount();
    const long runtime = at::detail::getCUDAHooks().versionCUDART();
    if (runtime) facts.cuda_runtime = fmt::format("{}.{}", runtime / 1000, runtime / 10 % 100);
  }
  facts.cpu_vectors = at::get_cpu_capability();
  for (const auto& [name, value] : at::cpu::get_cpu_capabilities()) {
    if (value.isBool() && value.toBool()) facts.cpu_features.push_back(name);
  }
  std::sort(facts.cpu_features.begin(), facts.cpu_features.end());
  facts.blas = at::hasMKL() ? "mkl" : at::hasLAPACK() ? "lapack" : "none";
  return facts;
}

bool cuda_loaded() { return at::hasCUDA(); }

bool torch_has_cuda_libraries() {
  Dl_info here;
  return dladdr(reinterpret_cast<void*>(static_cast<void (*)(int)>(&at::set_num_threads)), &here) != 0 &&
         std::filesystem::exists(std::filesystem::path(here.dli_fname).parent_path() / "libtorch_cuda.so");
}

double attention_error(bool gpu) {
  const at::Device device(gpu ? at::kCUDA : at::kCPU);
  const auto options = at::TensorOptions(at::kFloat);
  const at::Tensor q = at::linspace(-2, 2, 1 * 33 * 2 * 64, options).sin().reshape({1, 33, 2, 64}).to(device);
  const at::Tensor k = q.roll(5, 1), v = q.roll(9, 3);
  ops::AttentionOptions attention;
  attention.normalizer = "softmax";
  const at::Tensor ours = std::get<0>(ops::attention(q, k, v, {}, {}, attention));
  const at::Tensor theirs = at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                                             {}, 0.0, /*is_causal=*/true)
                                .transpose(1, 2);
  return (ours - theirs).abs().max().item<double>();
}

std::string exception_message(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch ? of_torch->what_without_backtrace() : error.what();
}

}  // namespace lazy
