#include "ops/cuda_choice.h"

namespace lazy::ops {

static CudaChoice& loaded() {
  static CudaChoice choice = nullptr;
  return choice;
}

CudaChoice cuda_choice() { return loaded(); }
void set_cuda_choice(CudaChoice choice) { loaded() = choice; }

}  // namespace lazy::ops
