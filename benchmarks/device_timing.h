// Medians of repeated runs on a GPU, by its own clock. Without linking PyTorch's CUDA libraries: they are there when a CUDA
// tensor is.
#pragma once
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <functional>
#include <vector>

namespace lazy::benchmarks {

// Milliseconds of each: as timing.h's medians_ms, but a round queues `calls` of a work after one that is not counted, which
// keeps the GPU busy while the host queues.
inline std::vector<double> device_medians_ms(int rounds, int calls, const std::vector<std::function<void()>>& works) {
  const c10::impl::VirtualGuardImpl gpu(c10::DeviceType::CUDA);
  const c10::Stream stream = gpu.getStream(gpu.getDevice());
  c10::Event begin(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);
  std::vector<std::vector<double>> times(works.size());
  for (int n = -1; n < rounds; ++n) {
    for (size_t w = 0; w < works.size(); ++w) {
      works[w]();
      begin.record(stream);
      for (int i = 0; i < calls; ++i) works[w]();
      end.record(stream);
      end.synchronize();
      if (n >= 0) times[w].push_back(begin.elapsedTime(end) / calls);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& t : times) {
    std::nth_element(t.begin(), t.begin() + static_cast<std::ptrdiff_t>(t.size() / 2), t.end());
    medians.push_back(t[t.size() / 2]);
  }
  return medians;
}

}  // namespace lazy::benchmarks
