#include "ops/step_kernels.h"

#include <c10/util/Exception.h>

#include "ops/cuda_library.h"

namespace lazy::ops {

namespace {

class Repeater : public Recorder {
 public:
  std::function<void()> record(const std::function<void()>& work) override { return work; }
};

}  // namespace

const StepKernels* step_kernels() { return cuda_library().step_kernels; }

std::unique_ptr<Recorder> make_recorder(c10::Device device) {
  if (!device.is_cuda()) return std::make_unique<Repeater>();
  TORCH_CHECK(step_kernels(), "make_recorder: the CUDA operators are not loaded");
  return step_kernels()->make_recorder();
}

}  // namespace lazy::ops
