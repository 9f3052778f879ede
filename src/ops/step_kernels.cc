#include "ops/step_kernels.h"

#include <c10/util/Exception.h>

namespace lazy::ops {

namespace {

const StepKernels*& loaded() {
  static const StepKernels* kernels = nullptr;
  return kernels;
}

class Repeater : public Recorder {
 public:
  std::function<void()> record(const std::function<void()>& work) override { return work; }
};

}  // namespace

const StepKernels* step_kernels() { return loaded(); }
void set_step_kernels(const StepKernels* kernels) { loaded() = kernels; }

std::unique_ptr<Recorder> make_recorder(c10::Device device) {
  if (!device.is_cuda()) return std::make_unique<Repeater>();
  TORCH_CHECK(step_kernels(), "recorded work: the CUDA operators are not loaded");
  return step_kernels()->make_recorder();
}

}  // namespace lazy::ops
