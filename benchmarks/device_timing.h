// Medians of repeated runs on a GPU, by its own clock. Without linking PyTorch's CUDA libraries: they are there when a
// CUDA tensor is.
#pragma once
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "benchmarks/timing.h"

namespace lazy::benchmarks {

// Milliseconds of each: a round queues `calls` of a work after one that is not counted, which keeps the GPU busy while
// the host queues.
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

}  // namespace lazy::benchmarks
