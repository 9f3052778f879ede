// Functions that measure the median time of repeated runs on CPU and GPU, and that check results against a reference.
#pragma once
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "core/error.h"

namespace lazy::benchmarks {

using Works = std::vector<std::function<void()>>;

// Returns the median of measure(work) for each function in `works`. After one warm-up round, every round runs each
// function once, so that a temporary slowdown affects all functions, and no function finds its data in the cache.
template <typename Measure>
std::vector<double> medians(int rounds, const Works& works, const Measure& measure) {
  std::vector<std::vector<double>> times(works.size());
  for (int n = -1; n < rounds; ++n) {
    for (size_t w = 0; w < works.size(); ++w) {
      const double time = measure(works[w]);
      if (n >= 0) times[w].push_back(time);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& t : times) {
    std::nth_element(t.begin(), t.begin() + static_cast<std::ptrdiff_t>(t.size() / 2), t.end());
    medians.push_back(t[t.size() / 2]);
  }
  return medians;
}

// Returns the median wall-clock time of each function in milliseconds.
inline std::vector<double> medians_ms(int rounds, const Works& works) {
  return medians(rounds, works, [](const auto& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  });
}

// Returns the median GPU time of each function in milliseconds per call, measured with CUDA events. PyTorch's CUDA
// libraries are not linked but loaded before the first CUDA tensor is created, so the events are created through
// PyTorch's virtual device interface. Each measurement first enqueues one call that is not timed. It keeps the GPU busy
// while the host enqueues the `calls` timed calls.
inline std::vector<double> device_medians_ms(int rounds, int calls, const Works& works) {
  const c10::impl::VirtualGuardImpl gpu(c10::DeviceType::CUDA);
  const c10::Stream stream = gpu.getStream(gpu.getDevice());
  c10::Event begin(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);
  return medians(rounds, works, [&](const auto& work) {
    work();
    begin.record(stream);
    for (int i = 0; i < calls; ++i) work();
    end.record(stream);
    end.synchronize();
    return begin.elapsedTime(end) / calls;
  });
}

inline double relative_error(const at::Tensor& x, const at::Tensor& truth) {
  return ((x.to(truth.device(), at::kDouble) - truth).norm() / truth.norm()).item<double>();
}

// Checks the result `found`. Its error relative to the float64 result `truth` must be at most twice the error of the
// plain fp32 computation `plain`, plus one rounding of `type`. Otherwise throws a RunError that names `what`.
inline void require_agreement(const char* operation, const std::string& what, at::ScalarType type,
                              const at::Tensor& found, const at::Tensor& plain, const at::Tensor& truth) {
  const double error = relative_error(found, truth);
  const double allowed = 2 * relative_error(plain, truth) + (type == at::kFloat ? 0x1p-24 : 0x1p-8);
  if (error <= allowed) return;
  fail_run(operation, "{} is wrong: relative error {:.2e}, expected at most {:.2e}", what, error, allowed);
}

}  // namespace lazy::benchmarks
